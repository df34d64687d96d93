"""Open a published vision transformer, and start services on it."""

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

# One core that decodes keeps up with an engine on this many cores; more readers than the maximum wait for each other.
_CORES_PER_READER = 4
_MAX_READERS = 8


def load(context: ServiceContext, parameters: OtasParameters) -> Callable[[ServiceContext], Service]:
    """Open a published model.

    Args:
        context: Context of the model.
        parameters: Parameters in config.pbtxt.

    Returns:
        Function that starts a service on the opened model, also again after a failure; its tasks load on first use.

    Raises:
        InvalidArgument: The version does not fit its files, this device, the engine library or the config.
    """
    manifest = load_otas_manifest(context.version_dir)
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    parameters.make_policy(Profile(manifest.profile, {}))  # checks the parameters before engines are opened
    runner = open_runner(manifest, context.version_dir)
    runner.warm_up()
    decoder = ImageDecoder(manifest.image, parameters.max_pixels, parameters.max_image_bytes)
    readers = min(max(1, len(os.sched_getaffinity(0)) // _CORES_PER_READER), _MAX_READERS)
    # An engine is called by one thread at a time, also while a failed service still runs its last batch.
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
            tokens=manifest.tokens,
            default_latency_s=parameters.default_latency_ms / 1e3,
            readers=readers,
        )

    return start
