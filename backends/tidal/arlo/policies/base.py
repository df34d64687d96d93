"""What every placement policy takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(eq=False, slots=True)
class ArloQuery:
    """A waiting query; times are seconds on whatever clock the caller keeps."""

    length: int  # tokens, special tokens included
    arrival: float
    deadline: float | None = None


@dataclass(eq=False, slots=True)  # not frozen: one is made for every query, and a frozen one takes three times as long
class ArloBatch:
    """Queries that one runtime of one lane is to run together, never empty.

    A lane runs one batch at a time; lanes may run at the same time. It is an engine context of its own, or an instance
    of one runtime.
    """

    lane: int
    runtime: int  # index into the runtimes, ascending by max_length
    queries: Sequence[ArloQuery]


class PlacementPolicy(Protocol):
    """Decides which waiting queries run next, where, and together.

    Not safe for several threads at once: its caller holds a lock around every call. Every submitted query leaves
    once, in a batch, as expired, or by `clear`.
    """

    @property
    def max_concurrency(self) -> int:
        """Batches that run at the same time at most."""

    @property
    def can_start(self) -> bool:
        """Whether something waits and a lane is free for it."""

    def __len__(self) -> int:
        """Queries that wait."""

    def submit(self, query: ArloQuery) -> None:
        """Add a waiting query."""

    def clear(self) -> None:
        """Forget everything that waits."""

    def expired(self, now: float) -> list[ArloQuery]:
        """Take out the queries that would miss their deadline even if they ran at once."""

    def next_batch(self, now: float) -> ArloBatch | None:
        """The batch to start now, or None when nothing waits or no lane is free for it. Call `expired` first."""

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """A batch has run, in `took` seconds, or failed (None): its lane is free."""

    def requeue(self, batch: ArloBatch) -> None:
        """A batch's lane could not run it: its queries wait again. The lane stays taken until `finished`."""
