"""The runner of passes as the engine sees it, and who may use it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from tidal.errors import Internal
from tidal.flover.memory.slots import SlotCopy, SlotMove
from tidal.flover.policies.committed import CommittedMemory
from tidal.flover.policies.pages import SlotPages
from tidal.flover.runner import PrefillInput
from tidal.flover.sampling import IntArray
from tidal.flover.tasks.adapter import LoraAdapter


class PassRunner(Protocol):
    """Passes over slots, from one thread at a time; see `tidal.flover.runner.FloverRunner`."""

    slots: int
    runs_mixed: bool
    pages: SlotPages
    budget: int

    def prefill(
        self, slot: int, token_ids: IntArray, start: int, *, last: bool = True, task: LoraAdapter | None = None
    ) -> torch.Tensor | None:
        """Prefill a chunk of a prompt."""

    def decode(
        self, begin: int, end: int, token_ids: IntArray, positions: IntArray, tasks: Sequence[LoraAdapter | None] = ()
    ) -> torch.Tensor:
        """Decode one token for every slot of a window."""

    def mixed(
        self, slots: IntArray, token_ids: IntArray, positions: IntArray, chunks: Sequence[PrefillInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefill chunks and decode in one pass."""

    def move_slots(self, moves: Iterable[SlotMove], tokens: Sequence[int], *, release: bool = False) -> int:
        """Move the contents of slots; returns the bytes copied."""

    def copy_slots(self, copies: Sequence[SlotCopy], *, release: Collection[int] = ()) -> int:
        """Copy tokens between slots; returns the bytes copied."""

    def clear(self, slot: int, begin: int, end: int) -> None:
        """Have the operating system clear some bytes of the memory of a slot that has no tokens."""

    def release(self, kept: Mapping[int, int]) -> None:
        """Give memory of slots behind their first tokens to the operating system."""

    def repair(self, written: Sequence[int]) -> tuple[int, ...]:
        """Clear slots with non-finite values, and return them."""


class SharedRunner:
    """A runner with one owner at a time.

    A pass of a service that failed may still be running, or about to start, when the next service takes over. What it
    has committed stays committed: memory that was released would have to be cleared again by the operating system.

    Args:
        runner: PassRunner of a published version; the memory of its slots is released.

    Attributes:
        memory: Memory committed to the slots; for the owner.
    """

    def __init__(self, runner: PassRunner) -> None:
        runner.release(dict.fromkeys(range(runner.slots), 0))
        self.memory = CommittedMemory(runner.slots, runner.pages, runner.budget)
        self._runner = runner
        self._lock = threading.Lock()
        self._owner: object = None

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self._runner.slots

    @property
    def pages(self) -> SlotPages:
        """Memory of a slot by the number of its tokens."""
        return self._runner.pages

    @property
    def budget(self) -> int:
        """Most bytes of keys and values."""
        return self._runner.budget

    @property
    def runs_mixed(self) -> bool:
        """Whether chunks of prompts and a decode step can share one pass."""
        return self._runner.runs_mixed

    def take_over(self, owner: object) -> None:
        """Make `owner` the only one whose passes run from now on."""
        self._owner = owner

    @contextmanager
    def use(self, owner: object) -> Iterator[PassRunner]:
        """Hold the runner for one pass.

        Raises:
            Internal: Another owner has taken over.
        """
        with self._lock:
            if self._owner is not owner:
                raise Internal("another service owns the runner")
            yield self._runner
