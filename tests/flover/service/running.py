"""The `flover` service without a server: requests that keep their responses, and a service over a runner."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import Logger
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.decoders import byte_tokenizer
from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tests.flover.service.runners import EOS, MAX_LENGTH, VOCABULARY, CheapCosts, FreeCosts, RandomMoves, ScriptedRunner
from tidal.errors import Cancelled
from tidal.flover.chat import ChatFormat, ChatTemplate
from tidal.flover.engine.draft_model import DraftModel
from tidal.flover.engine.model_drafts import ModelDrafts
from tidal.flover.engine.runners import PassRunner, SharedRunner
from tidal.flover.engine.speculation import Speculation
from tidal.flover.form import DecoderForm
from tidal.flover.generation import Generation
from tidal.flover.guided import GuidedGrammars, MaskWorker
from tidal.flover.policies import DraftingPolicy, FloverScheduler, MemoryBudget, SpeculationPolicy
from tidal.flover.prompts import PromptReader
from tidal.flover.request_parser import RequestParser
from tidal.flover.responses import OUTPUTS
from tidal.flover.service import FloverService
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.library import open_library
from tidal.flover.text import TokenTexts
from tidal.metrics import Metrics
from tidal.requests import Array
from tidal.service import ServiceContext
from tidal.tasks.folder import tasks_folder
from tidal.text import TextTokenizer
from tidal.triton.keeper import ServiceKeeper

#: Base of tasks; the scripted runner only distinguishes them.
BASE = DecoderBase(
    "0" * 64,
    DecoderForm(
        family="gpt2", vocabulary=VOCABULARY, layers=1, width=2, heads=1, kv_heads=1, head_dim=2, inner=2,
        positions=MAX_LENGTH, rotary=None, norm="layer", epsilon=1e-5, activation="gelu_new",
    ),
)  # fmt: skip


def write_tokenizer(folder: Path) -> Path:
    file = folder / "tokenizer.json"
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(file))
    return file


class FakePrompt(FakeRequest):
    """A request to generate from one or more prompts.

    Args:
        prompt: Text, token ids or texts; None for neither.
        stream: Value of the input `stream`; None leaves it out.
        options: Request options, or `wanted` and `inputs` as `FakeRequest` has them.
    """

    def __init__(
        self, prompt: str | Sequence[int] | Sequence[str] | None, *, stream: bool | None = None, **options: Any
    ) -> None:
        inputs: dict[str, Array] = {}
        if isinstance(prompt, str):
            inputs["text_input"] = np.array([prompt.encode()], object)
        elif prompt and isinstance(prompt[0], str):
            inputs["text_input"] = np.array([str(each).encode() for each in prompt], object)
        elif prompt is not None:
            inputs["input_ids"] = np.array(prompt, np.int64)
        if stream is not None:
            inputs["stream"] = np.array([stream])
        wanted = options.pop("wanted", frozenset(OUTPUTS))
        super().__init__(options.pop("inputs", inputs), wanted=wanted, **options)

    def tokens(self) -> list[int]:
        """Return the tokens of all responses."""
        last = self.wait()
        return [token for outputs in (*self.parts, last) for token in outputs["token_ids"].tolist()]

    def text(self) -> str:
        last = self.wait()
        return b"".join(outputs["text_output"][0] for outputs in (*self.parts, last)).decode()

    def by_prompt(self) -> list[list[int]]:
        """Return the tokens of each prompt over all responses; check `index` and the counts."""
        last = self.wait()
        found: dict[int, list[int]] = {}
        for outputs in (*self.parts, last):
            tokens, indices = outputs["token_ids"].tolist(), outputs["index"].tolist()
            counts = outputs["generated_tokens"].tolist() if len(indices) > 1 else [len(tokens)]
            for index, count in zip(indices, counts, strict=True):
                found.setdefault(index, []).extend(tokens[:count])
                del tokens[:count]
            assert not tokens
            if "generated_tokens" in outputs:
                assert [len(found[index]) for index in indices] == outputs["generated_tokens"].tolist()
        return [found[index] for index in range(len(found))]

    def finish(self) -> str:
        return bytes(self.wait()["finish_reason"][0]).decode()


@dataclass
class RunningService:
    """A service under the keeper, with its runner and metrics."""

    keeper: ServiceKeeper
    decoder: Any
    metrics: Metrics
    open: list[FakePrompt] = field(default_factory=list)

    def ask(self, *requests: FakePrompt) -> None:
        self.open += requests
        self.keeper.submit(list(requests))

    def arrives(self, *requests: FakePrompt) -> bool:
        """Submit requests while an iteration is blocked; return whether the next one will receive them."""
        service: Any = self.keeper._current.service
        self.ask(*requests)
        return until(lambda: len(service._arrived) == len(requests))

    def metric(self, family: str, **labels: str) -> float:
        """Return the sum of a family's series with these labels."""
        return sum(
            sample.value
            for sample in self.metrics.samples()
            if sample.family == f"tidal_flover_{family}" and labels.items() <= dict(sample.labels).items()
        )

    def counts(self, family: str, value: float, **labels: str) -> bool:
        """Wait until a metric has a value, since some are set after the answer; return whether it has."""
        return until(lambda: self.metric(family, **labels) == value)


#: A chat template that writes roles and contents.
CHAT = ChatFormat(
    templates={
        "default": "{% for message in messages %}{% if message.role == 'critic' %}{{ raise_exception('no critics') }}"
        "{% endif %}{{ message.role[0] }}:{{ message.content }};{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ style }}{% if add_generation_prompt %}a:{% endif %}"
    },
    special_tokens={"eos_token": "<end>"},
)


def make_parser(
    tokenizer: Path, max_length: int = MAX_LENGTH, slots: int = 4, eos: frozenset[int] = frozenset({EOS}),
    memory: MemoryBudget | None = None,
) -> RequestParser:  # fmt: skip
    text = TextTokenizer(tokenizer, max_length - 1)
    prompts = PromptReader(text, VOCABULARY, slots, ChatTemplate(CHAT))
    grammars = GuidedGrammars(text.tokenizer, VOCABULARY, eos)
    return RequestParser(prompts, grammars, MaskWorker(), max_length, 8, eos, TokenTexts(text.tokenizer), memory)


def make_speculation(drafter: PassRunner | None, log: Logger) -> Speculation:
    """Return drafts by prompt lookup, and by a draft model if there is one."""
    policy = SpeculationPolicy(CheapCosts(), share=1.0)
    if drafter is None:
        return Speculation(policy)
    model = DraftModel(
        SharedRunner(drafter), max_length=MAX_LENGTH, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY
    )
    drafting = DraftingPolicy(policy, FreeCosts())
    return Speculation(policy, ModelDrafts(model, drafting, most=4, acceptance=0.7, log=log))


_models = itertools.count()


@contextmanager
def running(
    folder: Path,
    decoder: PassRunner | None = None,
    *,
    tokenizer: Path | None = None,
    shuffle: bool = True,
    reuse_prefixes: bool = True,
    speculates: bool = False,
    drafter: PassRunner | None = None,
    random_moves: bool = False,
    max_length: int = MAX_LENGTH,
    prefill_share: float = 1.0,
    base: DecoderBase = BASE,
    task_bytes: int = 1 << 20,
) -> Iterator[RunningService]:
    """Run a service over a runner; at the end, check that each request was answered once and all slots are free.

    Args:
        folder: Folder of the tokenizer and the tasks.
        decoder: Runner of the model.
        tokenizer: File of the tokenizer; None: one of bytes.
        shuffle: As of `FloverService`.
        reuse_prefixes: As of `FloverService`.
        speculates: Whether there are drafts.
        drafter: Runner of a draft model, whose passes are predicted to take next to no time.
        random_moves: Whether slots are moved at random before each step.
        max_length: Number of tokens of a slot.
        prefill_share: As of `FloverScheduler`.
        base: Base of tasks.
        task_bytes: Largest size of tasks in memory.
    """
    decoder = ScriptedRunner() if decoder is None else decoder
    file = write_tokenizer(folder) if tokenizer is None else tokenizer
    metrics, opened, shared = Metrics("flover"), list[FakePrompt](), SharedRunner(decoder)
    name = f"flover{next(_models)}"

    def start(context: ServiceContext) -> FloverService:
        binding = decoder.budget < decoder.slots * decoder.pages.bytes(max_length)
        holes = random_moves or not shuffle
        memory = MemoryBudget(decoder.budget, decoder.pages, decoder.slots, holes) if binding else None
        scheduler = FloverScheduler[Generation](decoder.slots, CheapCosts(), prefill_share=prefill_share, memory=memory)
        library = open_library(tasks_folder(folder), base, task_bytes, metrics)
        with pytest.MonkeyPatch.context() as patch:
            if random_moves:
                patch.setattr("tidal.flover.engine.slots.SlotTable", RandomMoves)
            parser = make_parser(file, max_length, decoder.slots, memory=memory)
            return FloverService(
                context, parser, library, scheduler, shared, shuffle=shuffle, reuse_prefixes=reuse_prefixes,
                speculation=make_speculation(drafter, context.log) if speculates else None,
                max_delay_s=0.02,
            )  # fmt: skip

    def fail_all(error: Any) -> None:
        for request in opened:
            request.fail(error)

    context = make_context(folder, metrics, model=name, outputs=frozenset(OUTPUTS), failures=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidal.tasks.intake._SCAN_S", 0.05)
        keeper = ServiceKeeper(context, start, fail_all)
        service = RunningService(keeper, decoder, metrics, opened)
        try:
            yield service
        finally:
            keeper.close(10)
    assert until(lambda: not [each for each in threading.enumerate() if each.name.startswith(f"{name}-")])
    assert [request.answers for request in opened] == [1] * len(opened)
    assert service.metric("taken_slots") == service.metric("waiting_generations") == 0


def ask_at_random(
    service: RunningService, requests: Iterable[FakePrompt], rng: random.Random, longest_pause_s: float
) -> list[Any]:
    """Send requests with pauses, and cancel one of ten.

    Args:
        service: Service that answers.
        requests: Requests; each is made right before it is sent.
        rng: Draws pauses and cancellations, between the requests.
        longest_pause_s: Longest pause, after one of six requests; after others 2 ms.

    Returns:
        Tokens of each request by prompt; None for those that were cancelled.
    """
    asked, found = list[tuple[FakePrompt, bool]](), list[Any]()
    for number, request in enumerate(requests):
        cancels = rng.random() < 0.1
        asked.append((request, cancels))
        service.ask(request)
        time.sleep(rng.random() * (longest_pause_s if number % 6 == 0 else 0.002))
        if cancels:
            request.withdrawn = True
    for request, cancels in asked:
        try:
            tokens = request.by_prompt()
        except Cancelled:
            tokens = None
        found.append(None if cancels else tokens)
    return found
