"""The `flover` service without a server: requests that keep their responses, and a runner with known logits."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tidal.flover.engine.runners import Runner, SharedRunner
from tidal.flover.engine.slots import SlotOwner
from tidal.flover.form import DecoderForm
from tidal.flover.generation import Generation
from tidal.flover.memory.slots import SlotCopy, SlotMove, SlotTable
from tidal.flover.policies import FloverScheduler
from tidal.flover.request_parser import RequestParser
from tidal.flover.responses import OUTPUTS
from tidal.flover.runner import PrefillInput
from tidal.flover.service import FloverService
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.library import open_library
from tidal.metrics import Metrics
from tidal.requests import Array
from tidal.service import ServiceContext
from tidal.tasks.folder import tasks_folder
from tidal.text import TextTokenizer
from tidal.triton.keeper import ServiceKeeper

MAX_LENGTH = 64
EOS = 256
VOCABULARY = 257  # the bytes, and what ends a text
#: Base of tasks; the scripted runner only distinguishes them.
BASE = DecoderBase(
    "0" * 64,
    DecoderForm(
        family="gpt2", vocabulary=VOCABULARY, layers=1, width=2, heads=1, kv_heads=1, head_dim=2, inner=2,
        positions=MAX_LENGTH, rotary=None, norm="layer", epsilon=1e-5, activation="gelu_new",
    ),
)  # fmt: skip


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer whose tokens are the bytes of UTF-8."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return file


class FakePrompt(FakeRequest):
    """A request for a generation."""

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
        """Tokens of all responses."""
        last = self.wait()
        return [token for outputs in (*self.parts, last) for token in outputs["token_ids"].tolist()]

    def text(self) -> str:
        last = self.wait()
        return b"".join(outputs["text_output"][0] for outputs in (*self.parts, last)).decode()

    def by_prompt(self) -> list[list[int]]:
        """Tokens of each prompt, of all responses; checks `index` and counts against them."""
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


@functools.cache
def logits_of(history: tuple[int, ...]) -> np.ndarray:
    """Logits of the scripted runner for a text; any other text gets other logits."""
    seed = int.from_bytes(hashlib.sha256(repr(history).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32)


def greedy(prompt: Sequence[int], count: int, task: int | None = None) -> list[int]:
    """Tokens that the scripted runner generates greedily, up to `count` or the end of the text.

    Args:
        prompt: Token ids of the prompt.
        count: Largest number of tokens.
        task: First value of the task; None: the base model.
    """
    before = [] if task is None else [-1 - task]
    history = [*before, *prompt]
    for _ in range(count):
        history.append(int(logits_of(tuple(history)).argmax()))
        if history[-1] == EOS:
            break
    return history[len(before) + len(prompt) :]


def mark_of(task: Any) -> int:
    """Token that a task adds before all texts: its first value identifies it."""
    return -1 - int(task.factors["qkv"][0].down[0, 0])


class ScriptedRunner:
    """Keeps the tokens of every slot, so that slots that were mixed up give other logits.

    Attributes:
        decodes: window of slots of each decode step.
        before: called with the kind of a pass and its number; may wait or raise.
        spoilt: histories whose logits are NaN.
    """

    runs_mixed = False

    def __init__(self, slots: int = 4) -> None:
        self.slots = slots
        self.memory = np.full((slots, MAX_LENGTH), -1)
        self.decodes: list[tuple[int, int]] = []
        self.chunks: list[tuple[int, int]] = []
        self.checks = 0
        self.before: Callable[[str, int], None] = lambda _kind, _number: None
        self.undefined_for: Callable[[tuple[int, ...]], bool] = lambda _history: False
        self._alone = threading.Lock()

    @contextmanager
    def _one(self) -> Iterator[None]:
        assert self._alone.acquire(blocking=False), "two passes at the same time"
        try:
            yield
        finally:
            self._alone.release()

    def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
        history = tuple(self.memory[slot, :length].tolist())
        if task is not None:
            history = (mark_of(task), *history)
        return np.full(VOCABULARY, np.nan, np.float32) if self.undefined_for(history) else logits_of(history)

    def mixed(
        self, slots: np.ndarray, token_ids: np.ndarray, positions: np.ndarray, chunks: Sequence[PrefillInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def prefill(
        self, slot: int, token_ids: np.ndarray, start: int, *, last: bool = True, task: Any = None
    ) -> torch.Tensor | None:
        with self._one():
            self.chunks.append((start, start + len(token_ids)))
            self.before("prefill", len(self.chunks) - 1)
            self.memory[slot, start : start + len(token_ids)] = token_ids
            return torch.from_numpy(self._logits(slot, start + len(token_ids), task)) if last else None

    def decode(
        self, begin: int, end: int, token_ids: np.ndarray, positions: np.ndarray, tasks: Sequence[Any] = ()
    ) -> torch.Tensor:
        with self._one():
            self.decodes.append((begin, end))
            self.before("decode", len(self.decodes) - 1)
            rows = range(begin, end)
            for slot, token, position in zip(rows, token_ids, positions, strict=True):
                self.memory[slot, position] = token
            return torch.from_numpy(
                np.stack([self._logits(*each) for each in zip(rows, positions + 1, tasks, strict=True)])
            )

    def move_slots(self, moves: Iterable[SlotMove], tokens: Sequence[int]) -> int:
        with self._one():
            copied = 0
            for move in moves:
                source, target = self.memory[move.source].copy(), self.memory[move.target].copy()
                self.memory[move.target] = source
                self.memory[move.source] = target if move.exchange else -1
                copied += tokens[move.source]
            return copied

    def copy_slots(self, copies: Iterable[SlotCopy]) -> int:
        with self._one():
            copied = 0
            for copy in copies:
                assert copy.begin < copy.end
                self.memory[copy.target, copy.begin : copy.end] = self.memory[copy.source, copy.begin : copy.end]
                self.memory[copy.target, copy.end :] = -1
                copied += copy.end - copy.begin
            return copied

    def repair(self) -> tuple[int, ...]:
        self.checks += 1
        return ()


class ScriptedMixedRunner(ScriptedRunner):
    """Also runs chunks and a decode step in one pass.

    Attributes:
        passes: of each such pass the slots that got a token, and the chunks.
    """

    runs_mixed = True

    def __init__(self, slots: int = 4) -> None:
        super().__init__(slots)
        self.passes: list[tuple[list[int], list[tuple[int, int]]]] = []

    def mixed(
        self, slots: np.ndarray, token_ids: np.ndarray, positions: np.ndarray, chunks: Sequence[PrefillInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._one():
            ranges = [(each.start, each.start + len(each.token_ids)) for each in chunks]
            self.passes.append((slots.tolist(), ranges))
            self.before("mixed", len(self.passes) - 1)
            self.memory[slots, positions] = token_ids
            for each, (start, end) in zip(chunks, ranges, strict=True):
                self.memory[each.slot, start:end] = each.token_ids
            stepped = [self._logits(slot, position + 1, None) for slot, position in zip(slots, positions, strict=True)]
            ended = [
                self._logits(each.slot, end, None) for each, (_, end) in zip(chunks, ranges, strict=True) if each.last
            ]
            none = torch.empty(0, VOCABULARY)
            return (
                torch.from_numpy(np.stack(stepped)) if stepped else none,
                torch.from_numpy(np.stack(ended)) if ended else none,
            )


class CheapCosts:
    """Costs of passes that take almost no time."""

    def decode_seconds(self, running: int) -> float:
        return 0.001

    def prefill_seconds(self, start: int, end: int) -> float:
        return (end - start) * 0.00005

    chunk_seconds = prefill_seconds


class RandomMoves(SlotTable[SlotOwner]):
    """A slot table with random moves before every step."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._luck = random.Random(5)

    def compact(self, tokens: Mapping[SlotOwner, int] | None = None) -> tuple[SlotMove, ...]:
        moves = []
        for _ in range(3):
            source, target = self._luck.sample(range(self.count), 2) if self.count > 1 else (0, 0)
            if self._owners[source] is not None and source != target:
                moves.append(SlotMove(source, target, self._owners[target] is not None))
                self.apply(moves[-1:])
        return tuple(moves)


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
        """Submit while an iteration is blocked; whether the next one will receive the requests."""
        service: Any = self.keeper._current.service
        self.ask(*requests)
        return until(lambda: len(service._arrived) == len(requests), 5)

    def metric(self, family: str, **labels: str) -> float:
        """Sum of a family's series with these labels."""
        return sum(
            sample.value
            for sample in self.metrics.samples()
            if sample.family == f"tidal_flover_{family}" and labels.items() <= dict(sample.labels).items()
        )

    def counts(self, family: str, value: float, **labels: str) -> bool:
        """Whether a metric reaches a value; some are set after the answer is sent."""
        return until(lambda: self.metric(family, **labels) == value, 5)


_models = itertools.count()


@contextmanager
def running(
    folder: Path,
    decoder: Runner | None = None,
    *,
    tokenizer: Path | None = None,
    shuffle: bool = True,
    random_moves: bool = False,
    max_length: int = MAX_LENGTH,
    prefill_share: float = 1.0,
    base: DecoderBase = BASE,
    task_bytes: int = 1 << 20,
) -> Iterator[RunningService]:
    """A service on a runner; at the end every request has been answered once, and all slots are free."""
    decoder = ScriptedRunner() if decoder is None else decoder
    file = write_tokenizer(folder) if tokenizer is None else tokenizer
    parser = RequestParser(
        TextTokenizer(file, max_length - 1), VOCABULARY, max_length, 8, decoder.slots, frozenset({EOS})
    )
    metrics, opened, shared = Metrics("flover"), list[FakePrompt](), SharedRunner(decoder)
    name = f"flover{next(_models)}"

    def start(context: ServiceContext) -> FloverService:
        scheduler = FloverScheduler[Generation](decoder.slots, CheapCosts(), prefill_share=prefill_share)
        library = open_library(tasks_folder(folder), base, task_bytes, metrics)
        with pytest.MonkeyPatch.context() as patch:
            if random_moves:
                patch.setattr("tidal.flover.engine.slots.SlotTable", RandomMoves)
            return FloverService(context, parser, library, scheduler, shared, shuffle=shuffle, max_delay_s=0.02)

    def fail_all(error: Any) -> None:
        for request in opened:
            request.fail(error)

    context = make_context(folder, metrics, model=name, outputs=frozenset(OUTPUTS), failures=[])
    keeper = ServiceKeeper(context, start, fail_all)
    service = RunningService(keeper, decoder, metrics, opened)
    try:
        yield service
    finally:
        keeper.close(10)
    assert until(lambda: not [each for each in threading.enumerate() if each.name.startswith(f"{name}-")], 5)
    assert [request.answers for request in opened] == [1] * len(opened)
    assert service.metric("taken_slots") == service.metric("waiting_generations") == 0
