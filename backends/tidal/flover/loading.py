"""Opens a published decoder, and starts services on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidal import device
from tidal.flover.chat import load_chat_template
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.speculation import Speculation
from tidal.flover.generation import Generation
from tidal.flover.guided import GuidedGrammars, MaskWorker
from tidal.flover.manifest import TOKENIZER_FILE, load_flover_manifest
from tidal.flover.parameters import FloverParameters
from tidal.flover.policies import FloverScheduler, ProfiledCosts, SpeculationPolicy
from tidal.flover.prompts import PromptReader
from tidal.flover.request_parser import RequestParser
from tidal.flover.runner import open_runner
from tidal.flover.service import FloverService
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.library import open_library
from tidal.flover.text import TokenTexts
from tidal.service import Service, ServiceContext
from tidal.tasks.folder import tasks_folder
from tidal.text import TextTokenizer


def load(context: ServiceContext, parameters: FloverParameters) -> Callable[[ServiceContext], Service]:
    """Open the published model once, and return a function that starts a service on it, again after a failure.

    Tasks are loaded on their first use by each service.

    Args:
        context: Context of the model's first service.
        parameters: The model's parameters of config.pbtxt.

    Raises:
        InvalidArgument: The version does not fit its files, this device, the engine library, the memory or the config.
        Unsupported: The engine library is not installed.
    """
    manifest = load_flover_manifest(context.version_dir)
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    vocabulary, eos = manifest.form.vocabulary, frozenset(manifest.eos_token_ids)
    tokenizer = TextTokenizer(context.version_dir / TOKENIZER_FILE, manifest.max_length - 1)
    prompts = PromptReader(tokenizer, vocabulary, manifest.max_concurrency, load_chat_template(context.version_dir))
    grammars, texts = GuidedGrammars(tokenizer.tokenizer, vocabulary, eos), TokenTexts(tokenizer.tokenizer)
    # Open it in a thread that ends. The OpenMP threads of a thread that lives on would exceed the number of cores, and
    # the engine's own would then sleep between linear layers instead of spinning.
    with ThreadPoolExecutor(1) as opening:
        runner = opening.submit(open_runner, manifest, context.version_dir).result()
    shared = SharedRunner(runner)
    costs = ProfiledCosts(manifest.profile.step, manifest.profile.chunk, mixed=runner.runs_mixed)

    def speculation() -> Speculation | None:
        if not parameters.speculation or not runner.draft_rows:
            return None
        return Speculation(SpeculationPolicy(costs, share=parameters.prefill_share, most_rows=runner.draft_rows))

    def start(fresh: ServiceContext) -> Service:
        base = DecoderBase(manifest.base, manifest.form)
        scheduler: FloverScheduler[Generation] = FloverScheduler(
            manifest.max_concurrency, costs, prefill_share=parameters.prefill_share
        )
        masks = MaskWorker()
        return FloverService(
            fresh,
            RequestParser(prompts, grammars, masks, manifest.max_length, parameters.default_max_tokens, eos, texts),
            open_library(tasks_folder(fresh.model_dir), base, parameters.task_bytes, fresh.metrics),
            scheduler,
            shared,
            shuffle=parameters.shuffle,
            reuse_prefixes=parameters.reuse_prefixes,
            speculation=speculation(),
            max_delay_s=parameters.part_wait_ms / 1e3,
        )

    return start
