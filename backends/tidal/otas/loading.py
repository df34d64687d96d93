"""Opening a published vision transformer as its manifest says, and starting services on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from tidal import device
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.otas.library import open_library
from tidal.otas.manifest import load_otas_manifest
from tidal.otas.parameters import OtasParameters
from tidal.otas.profile import Profile
from tidal.otas.runner import open_runner
from tidal.otas.service import OtasService
from tidal.service import Service, ServiceContext
from tidal.tasks.folder import tasks_folder

# Decoding keeps up with an engine that has these many cores for each core that decodes; more than the most below wait
# for each other.
_CORES_A_READER = 4
_MOST_READERS = 8


def load(context: ServiceContext, parameters: OtasParameters) -> Callable[[ServiceContext], Service]:
    """Open the published model once; what comes back starts a service on it, again after a failure.

    Tasks load on their first use, anew for every service.

    Raises:
        InvalidArgument: the version does not fit its files, this device, the engine library or the config.
    """
    manifest = load_otas_manifest(context.version_dir)
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    parameters.make_policy(Profile(manifest.profile, {}))  # says what is wrong before engines are opened
    runner = open_runner(manifest, context.version_dir)
    runner.warm_up()
    decoder = ImageDecoder(manifest.image, parameters.most_pixels, parameters.most_image_bytes)
    readers = min(max(1, len(os.sched_getaffinity(0)) // _CORES_A_READER), _MOST_READERS)
    # An engine is called from one thread at a time, also while a service that failed still runs its last batch.
    lock = threading.Lock()

    def run(gamma: int, pixel_values: FloatArray, prompts: FloatArray | None) -> FloatArray:
        with lock:
            return runner.run(gamma, pixel_values, prompts)

    def start(fresh: ServiceContext) -> Service:
        accuracies: dict[str, Mapping[int, float]] = {}
        return OtasService(
            fresh,
            run,
            decoder,
            manifest.image.shape,
            open_library(tasks_folder(fresh.model_dir), manifest, parameters.task_bytes, fresh.metrics),
            parameters.make_policy(Profile(manifest.profile, accuracies)),
            accuracies,
            default_latency_s=parameters.default_latency_ms / 1e3,
            readers=readers,
        )

    return start
