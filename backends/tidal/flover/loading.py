"""Opening a published decoder as its manifest says, and starting services on it."""

from __future__ import annotations

from collections.abc import Callable

from tidal import device
from tidal.flover.fusion import Fusion, Turn
from tidal.flover.manifest import TOKENIZER_FILE, load_flover_manifest
from tidal.flover.parameters import FloverParameters
from tidal.flover.policies import FloverScheduler, ProfiledCosts
from tidal.flover.reading import Reader
from tidal.flover.runner import open_runner
from tidal.flover.service import FloverService
from tidal.service import Service, ServiceContext
from tidal.text import TextTokenizer


def load(context: ServiceContext, parameters: FloverParameters) -> Callable[[ServiceContext], Service]:
    """Open the published model once; what comes back starts a service on it, again after a failure.

    Raises:
        InvalidArgument: the version does not fit its files, this device, the engine library, the memory or the config.
        Unsupported: the engine's library is not there.
    """
    manifest = load_flover_manifest(context.version_dir)
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    tokenizer = TextTokenizer(context.version_dir / TOKENIZER_FILE, manifest.max_length - 1)
    reader = Reader(tokenizer, manifest.form.vocabulary, manifest.max_length, parameters.default_max_tokens)
    costs = ProfiledCosts(manifest.profile.step, manifest.profile.prefill)
    runner, turn = open_runner(manifest, context.version_dir), Turn()

    def start(fresh: ServiceContext) -> Service:
        return FloverService(
            fresh,
            reader,
            FloverScheduler(manifest.max_concurrency, costs, prefill_share=parameters.prefill_share),
            Fusion(runner, turn, shuffle=parameters.shuffle),
            frozenset(manifest.eos_token_ids),
        )

    return start
