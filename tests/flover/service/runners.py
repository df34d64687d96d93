"""Runners without a model for the `flover` service: known logits, passes that a test can hold back, cheap costs."""

from __future__ import annotations

import functools
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from testing.waiting import until
from tidal.flover.engine.batches import SlotOwner
from tidal.flover.memory.slots import SlotCopy, SlotMove, SlotTable
from tidal.flover.policies.pages import SlotPages, TokenRuns
from tidal.flover.runner import PrefillInput

MAX_LENGTH = 64
PAGE = 4  # tokens
EOS = 256
VOCABULARY = 257  # the bytes, and what ends a text


@functools.cache
def logits_of(history: tuple[int, ...]) -> np.ndarray:
    """Return the scripted runner's logits for a token history; they differ between histories."""
    seed = int.from_bytes(hashlib.sha256(repr(history).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32)


def greedy(prompt: Sequence[int], count: int, task: int | None = None) -> list[int]:
    """Return the tokens that the scripted runner generates greedily, up to `count` or the end-of-text token.

    Args:
        prompt: Token ids of the prompt.
        count: Largest number of tokens.
        task: First value of the task's factors; None for the base model.
    """
    before = [] if task is None else [-1 - task]
    history = [*before, *prompt]
    for _ in range(count):
        history.append(int(logits_of(tuple(history)).argmax()))
        if history[-1] == EOS:
            break
    return history[len(before) + len(prompt) :]


def mark_of(task: Any) -> int:
    """Return the token that stands for a task at the start of a history: minus its first value, minus 1."""
    return -1 - int(task.factors["qkv"][0].down[0, 0])


class ScriptedRunner:
    """A runner that stores the tokens of every slot: the logits of a slot change when slots are confused.

    It commits memory in pages of `PAGE` tokens, and checks its budget after each pass.

    Attributes:
        decodes: Slots [begin, end) of each decode step.
        chunks: Positions [start, end) of each prefilled chunk.
        checks: Number of calls of `repair`.
        before: Called with the kind of a pass and its number before it runs; may wait or raise.
        undefined_for: Whether a history's logits are NaN.
        released: Number of slots that were released, in part or as a whole.

    Args:
        slots: Number of slots.
        budget: Most tokens of all slots in whole pages; None: those of all slots.
    """

    runs_mixed = False
    pages = SlotPages((TokenRuns(1, 1, PAGE),))

    def __init__(self, slots: int = 4, budget: int | None = None) -> None:
        self.slots = slots
        self.budget = slots * MAX_LENGTH if budget is None else budget
        self.memory = np.full((slots, MAX_LENGTH), -1)
        self.released = 0
        self._committed = np.zeros((slots, MAX_LENGTH // PAGE), bool)
        self.decodes: list[tuple[int, int]] = []
        self.chunks: list[tuple[int, int]] = []
        self.checks = 0
        self.before: Callable[[str, int], None] = lambda _kind, _number: None
        self.undefined_for: Callable[[tuple[int, ...]], bool] = lambda _history: False
        self._lock = threading.Lock()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        assert self._lock.acquire(blocking=False), "two passes at the same time"
        try:
            yield
        finally:
            self._lock.release()
            assert self._committed.sum() * PAGE <= self.budget, "more memory than the budget"

    def _write(self, slot: int, start: int, tokens: np.ndarray) -> None:
        self.memory[slot, start : start + len(tokens)] = tokens
        self._committed[slot, start // PAGE : -(-(start + len(tokens)) // PAGE)] = True

    def _release(self, slot: int, kept: int) -> None:
        first = -(-kept // PAGE)
        self._committed[slot, first:] = False
        self.memory[slot, first * PAGE :] = -1

    def release(self, kept: Mapping[int, int]) -> None:
        with self._exclusive():
            for slot, tokens in kept.items():
                self.released += bool(self._committed[slot].any())
                self._release(slot, tokens)

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
        with self._exclusive():
            self.chunks.append((start, start + len(token_ids)))
            self.before("prefill", len(self.chunks) - 1)
            self._write(slot, start, token_ids)
            return torch.from_numpy(self._logits(slot, start + len(token_ids), task)) if last else None

    def decode(
        self, begin: int, end: int, token_ids: np.ndarray, positions: np.ndarray, tasks: Sequence[Any] = ()
    ) -> torch.Tensor:
        with self._exclusive():
            self.decodes.append((begin, end))
            self.before("decode", len(self.decodes) - 1)
            rows = range(begin, end)
            for slot, token, position in zip(rows, token_ids, positions, strict=True):
                self._write(slot, position, np.array([token]))
            return torch.from_numpy(
                np.stack([self._logits(*each) for each in zip(rows, positions + 1, tasks, strict=True)])
            )

    def move_slots(self, moves: Iterable[SlotMove], tokens: Sequence[int], *, release: bool = False) -> int:
        with self._exclusive():
            held, copied = list(tokens), 0
            for move in moves:
                moved, exchanged = held[move.source], held[move.target] if move.exchange else 0
                source, target = self.memory[move.source, :moved].copy(), self.memory[move.target, :exchanged].copy()
                for slot, content in ((move.target, source), (move.source, target)):
                    self.memory[slot] = -1
                    self._write(slot, 0, content)
                    if release:
                        self._release(slot, len(content))
                held[move.source], held[move.target] = exchanged, moved
                copied += moved
            return copied

    def copy_slots(self, copies: Iterable[SlotCopy], *, release: Iterable[int] = ()) -> int:
        with self._exclusive():
            copied = 0
            for copy in copies:
                assert copy.begin < copy.end
                self._write(copy.target, copy.begin, self.memory[copy.source, copy.begin : copy.end])
                self.memory[copy.target, copy.end :] = -1
                copied += copy.end - copy.begin
            for slot in release:
                self._release(slot, 0)
            return copied

    def repair(self, written: Sequence[int]) -> tuple[int, ...]:
        self.checks += 1
        return ()


class ScriptedMixedRunner(ScriptedRunner):
    """A scripted runner that also runs chunks and a decode step in one pass.

    Attributes:
        passes: Slots that decoded a token and chunks, of each mixed pass.
    """

    runs_mixed = True

    def __init__(self, slots: int = 4, budget: int | None = None) -> None:
        super().__init__(slots, budget)
        self.passes: list[tuple[list[int], list[tuple[int, int]]]] = []

    def mixed(
        self, slots: np.ndarray, token_ids: np.ndarray, positions: np.ndarray, chunks: Sequence[PrefillInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._exclusive():
            ranges = [(each.start, each.start + len(each.token_ids)) for each in chunks]
            self.passes.append((slots.tolist(), ranges))
            self.before("mixed", len(self.passes) - 1)
            for slot, position, token in zip(slots, positions, token_ids, strict=True):
                self._write(slot, position, np.array([token]))
            for each, (start, _) in zip(chunks, ranges, strict=True):
                self._write(each.slot, start, each.token_ids)
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

    def decode_seconds(self, running: int, tokens: int) -> float:
        return 0.001

    def prefill_seconds(self, start: int, end: int) -> float:
        return (end - start) * 0.00005

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        return self.prefill_seconds(start, end)


class FreeCosts:
    """Costs of passes of a model that is so small that drafting by it pays."""

    def decode_seconds(self, running: int, tokens: int) -> float:
        return 1e-6

    def prefill_seconds(self, start: int, end: int) -> float:
        return (end - start) * 1e-6

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        return self.prefill_seconds(start, end)


class RandomMoves(SlotTable[SlotOwner]):
    """A slot table that moves slots at random before every step."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._rng = random.Random(5)

    def compact(
        self, tokens: Mapping[SlotOwner, int] | None = None, kept: Mapping[int, int] | None = None
    ) -> tuple[SlotMove, ...]:
        moves = []
        for _ in range(3):
            source, target = self._rng.sample(range(self.count), 2) if self.count > 1 else (0, 0)
            if self._owners[source] is not None and source != target:
                moves.append(SlotMove(source, target, self._owners[target] is not None))
                self.apply(moves[-1:])
        return tuple(moves)


class Gate:
    """Blocks passes of a kind, from number `first` on, until each is released or the gate is opened.

    Attributes:
        reached: Number of the pass that was blocked last; -1 before.
    """

    def __init__(self, kind: str, first: int = 0) -> None:
        self._kind, self._first = kind, first
        self._passes = threading.Semaphore(0)
        self._opened = threading.Event()
        self.reached = -1

    def __call__(self, kind: str, number: int) -> None:
        if kind == self._kind and number >= self._first and not self._opened.is_set():
            self.reached = number
            assert self._passes.acquire(timeout=60), "a pass was blocked for a minute"

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._passes.release()

    def at(self, number: int) -> bool:
        """Wait until a pass is blocked; return whether it is."""
        return until(lambda: self.reached == number)

    def open(self) -> None:
        self._opened.set()
        self.let(1000)


def delay_pass(_kind: str, _number: int) -> None:
    """Let other threads run before a pass (for `ScriptedRunner.before`)."""
    time.sleep(0.001)
