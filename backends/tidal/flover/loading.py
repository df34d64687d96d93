"""Opens a published decoder, and starts services on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import Logger

from tidal import device
from tidal.errors import InvalidArgument
from tidal.flover.chat import load_chat_template
from tidal.flover.engine.draft_model import DraftModel
from tidal.flover.engine.model_drafts import ModelDrafts
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.speculation import Speculation
from tidal.flover.generation import Generation
from tidal.flover.guided import GuidedGrammars, MaskWorker
from tidal.flover.manifest import TOKENIZER_FILE, DraftManifest, load_flover_manifest
from tidal.flover.opening import open_runners
from tidal.flover.parameters import FloverParameters
from tidal.flover.policies import DraftingPolicy, FloverScheduler, MemoryBudget, ProfiledCosts, SpeculationPolicy
from tidal.flover.prompts import PromptReader
from tidal.flover.request_parser import RequestParser
from tidal.flover.runner import FloverRunner
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
    chat = load_chat_template(context.version_dir)
    grammars, texts = GuidedGrammars(tokenizer.tokenizer, vocabulary, eos), TokenTexts(tokenizer.tokenizer)
    # Open it in a thread that ends. The OpenMP threads of a thread that lives on would exceed the number of cores, and
    # the engine's own would then sleep between linear layers instead of spinning.
    with ThreadPoolExecutor(1) as opening:
        runner, drafter = opening.submit(
            open_runners, manifest, context.version_dir, parameters.kv_cache_mb, drafts=parameters.speculation
        ).result()
    shared, memory = SharedRunner(runner), _budget(runner, holes=not parameters.shuffle)
    drafting = None if drafter is None else SharedRunner(drafter)
    prompts = PromptReader(tokenizer, vocabulary, runner.slots, chat)
    costs = ProfiledCosts(manifest.profile.step, manifest.profile.chunk, mixed=runner.runs_mixed)

    def speculation(log: Logger) -> Speculation | None:
        if not parameters.speculation or not runner.draft_rows:
            return None
        policy = SpeculationPolicy(costs, share=parameters.prefill_share, most_rows=runner.draft_rows)
        if manifest.draft is None or drafting is None:
            return Speculation(policy)
        return Speculation(policy, model_drafts(manifest.draft, drafting, policy, vocabulary, log))

    def start(fresh: ServiceContext) -> Service:
        base = DecoderBase(manifest.base, manifest.form)
        scheduler: FloverScheduler[Generation] = FloverScheduler(
            runner.slots, costs, prefill_share=parameters.prefill_share, memory=memory
        )
        masks = MaskWorker()
        return FloverService(
            fresh,
            RequestParser(
                prompts, grammars, masks, manifest.max_length, parameters.default_max_tokens, eos, texts, memory
            ),
            open_library(tasks_folder(fresh.model_dir), base, parameters.task_bytes, fresh.metrics),
            scheduler,
            shared,
            shuffle=parameters.shuffle,
            reuse_prefixes=parameters.reuse_prefixes,
            speculation=speculation(fresh.log),
            max_delay_s=parameters.part_wait_ms / 1e3,
        )

    return start


def model_drafts(
    draft: DraftManifest, runner: SharedRunner, policy: SpeculationPolicy, vocabulary: int, log: Logger
) -> ModelDrafts:
    """Return the drafts of a draft model.

    Args:
        draft: Manifest of the draft model.
        runner: Its runner, which the drafts take over.
        policy: Policy of the passes that check drafts.
        vocabulary: Size of the vocabulary of the model that it drafts for.
        log: Logger of that model.
    """
    model = DraftModel(
        runner, max_length=draft.max_length, vocabulary=draft.form.vocabulary, target_vocabulary=vocabulary
    )
    costs = ProfiledCosts(draft.profile.step, draft.profile.chunk, mixed=True)
    return ModelDrafts(model, DraftingPolicy(policy, costs), most=draft.tokens, acceptance=draft.agreement, log=log)


def _budget(runner: FloverRunner, *, holes: bool) -> MemoryBudget | None:
    """The budget of keys and values; None if all slots fit.

    Raises:
        InvalidArgument: One sequence does not fit beside the holes of decode steps.
    """
    if runner.budget >= runner.slots * runner.pages.bytes(runner.max_length):
        return None
    found = MemoryBudget(runner.budget, runner.pages, runner.slots, holes)
    if not found.fits_alone(1, runner.max_length):
        raise InvalidArgument(
            f"keys and values have {runner.budget:,} bytes, too few for a sequence of {runner.max_length} tokens and "
            f"one token in each of {runner.slots} slots, to which steps with shuffle: false write: raise kv_cache_mb, "
            "or lower max_concurrency or max_length"
        )
    return found
