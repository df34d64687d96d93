"""Interface of placement policies: queries in, batches out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(eq=False, slots=True)
class ArloQuery:
    """A waiting query; times are in seconds on the caller's clock."""

    length: int  # tokens, special tokens included
    arrival: float
    deadline: float | None = None


@dataclass(eq=False, slots=True)  # not frozen: one per query is created, which takes three times as long if frozen
class ArloBatch:
    """Queries to run together on one runtime of one lane; never empty.

    A lane is an engine context or an instance of a runtime. It runs one batch at a time; lanes run concurrently. An
    instance may have another one, which waits there.
    """

    lane: int
    runtime: int  # index into the runtimes, ascending by max_length
    queries: Sequence[ArloQuery]
    seconds: float = math.inf  # expected latency; infinite if the policy does not know it
    alone: bool = False  # whether nothing else runs or waits, and no batch can start before this one has ended
    queued: bool = False  # whether it waits in the engine until a running one has ended
    began: float | None = None  # when one that waited there began to run, set by the service


class PlacementPolicy(Protocol):
    """Decides which waiting queries run next, on which lane, and in which batch.

    Not thread-safe: callers hold a lock around every call. Every submitted query leaves exactly once: in a batch, as
    expired, or by `clear`.
    """

    @property
    def max_concurrency(self) -> int:
        """Maximum number of concurrent batches."""

    @property
    def can_start(self) -> bool:
        """Whether a query is waiting that a free lane can run."""

    def __len__(self) -> int:
        """Number of waiting queries."""

    def submit(self, query: ArloQuery) -> None:
        """Queue a query."""

    def clear(self) -> None:
        """Remove all waiting queries."""

    def expired(self, now: float) -> list[ArloQuery]:
        """Remove and return the queries that would miss their deadline even if they started now."""

    def next_batch(self, now: float) -> ArloBatch | None:
        """Return the batch to start now, or None if no query can start. Call `expired` first."""

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """Free the lane of a batch that has run, in `took` seconds, or failed (None)."""

    def requeue(self, batch: ArloBatch) -> None:
        """Requeue the queries of a batch that its lane could not run. The lane stays busy until `finished`."""
