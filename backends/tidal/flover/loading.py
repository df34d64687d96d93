"""Opening a published decoder as its manifest says, and starting services on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidal import device
from tidal.flover.fusion import Fusion, Turn
from tidal.flover.manifest import TOKENIZER_FILE, load_flover_manifest
from tidal.flover.parameters import FloverParameters
from tidal.flover.policies import FloverScheduler, ProfiledCosts
from tidal.flover.reading import Reader
from tidal.flover.runner import open_runner
from tidal.flover.service import FloverService
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.library import open_library
from tidal.service import Service, ServiceContext
from tidal.tasks.folder import tasks_folder
from tidal.text import TextTokenizer


def load(context: ServiceContext, parameters: FloverParameters) -> Callable[[ServiceContext], Service]:
    """Open the published model once; what comes back starts a service on it, again after a failure.

    Tasks load on their first use, anew for every service.

    Raises:
        InvalidArgument: the version does not fit its files, this device, the engine library, the memory or the config.
        Unsupported: the engine's library is not there.
    """
    manifest = load_flover_manifest(context.version_dir)
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    tokenizer = TextTokenizer(context.version_dir / TOKENIZER_FILE, manifest.max_length - 1)
    reader = Reader(
        tokenizer,
        manifest.form.vocabulary,
        manifest.max_length,
        parameters.default_max_tokens,
        manifest.max_concurrency,
        frozenset(manifest.eos_token_ids),
    )
    # In a thread that ends: OpenMP's threads of one that stays would count as more than there are cores, and those of
    # the decoding thread then sleep behind every product rather than look out for the next.
    with ThreadPoolExecutor(1) as opening:
        runner, turn = opening.submit(open_runner, manifest, context.version_dir).result(), Turn()
    costs = ProfiledCosts(manifest.profile.step, manifest.profile.prefill, fused=runner.fuses)

    def start(fresh: ServiceContext) -> Service:
        base = DecoderBase(manifest.base, manifest.form)
        return FloverService(
            fresh,
            reader,
            open_library(tasks_folder(fresh.model_dir), base, parameters.task_bytes, fresh.metrics),
            FloverScheduler(manifest.max_concurrency, costs, prefill_share=parameters.prefill_share),
            Fusion(runner, turn, shuffle=parameters.shuffle),
            part_wait_s=parameters.part_wait_ms / 1e3,
        )

    return start
