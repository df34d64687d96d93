"""Interface of policies: queries, batches, decisions, and the costs that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(eq=False, slots=True)
class Query:
    """A waiting query, compared by identity.

    Attributes:
        task: Name of its task.
        arrival: Time of arrival (s_r), in seconds on the caller's clock.
        deadline: Deadline (d_r), finite, in seconds on the same clock.
        utility: Utility of a correct answer in time (u_r), 0 or more.
    """

    task: str
    arrival: float
    deadline: float
    utility: float = 1.0


@dataclass(eq=False, slots=True)
class Batch:
    """Queries that run together at one γ; their tasks may differ.

    Attributes:
        queries: Queries of the batch, at least one.
        gamma: The γ of the batch.
        seconds: Predicted latency, in seconds.
    """

    queries: Sequence[Query]
    gamma: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of a policy.

    Attributes:
        batch: Batch to start now; None if no query waits or the engine is busy.
        evicted: Queries that can no longer meet their deadline; the policy has removed them, and they are not run.
    """

    batch: Batch | None
    evicted: Sequence[Query]


class CostProfile(Protocol):
    """Measured costs and accuracies by γ; `tidal.otas.profile.Profile` implements it."""

    @property
    def gammas(self) -> tuple[int, ...]:
        """List L of γ, ascending."""

    @property
    def max_batch(self) -> int:
        """Largest measured batch size."""

    def latency_s(self, gamma: int, batch: int) -> float:
        """Return the seconds of a batch of 1 to `max_batch` queries."""

    def memory_bytes(self, gamma: int, batch: int) -> int:
        """Return the memory of a running batch (M_b of Eq. 1c), in bytes."""

    def accuracy(self, task: str, gamma: int) -> float:
        """Return a task's accuracy at γ; raises a `TidalError` for an unknown task."""

    def gamma_for_rate(self, rate: float) -> int:
        """Return f(q): the γ for an arrival rate in queries per second (Table I)."""


class OtasPolicy(Protocol):
    """Decides which waiting queries run in the next batch on one engine, and at which γ.

    Not thread-safe: the caller holds a lock around every call. Every added query leaves exactly once: in a batch, as
    evicted, by `remove` or by `clear`. Times must not decrease from one call to the next.
    """

    @property
    def can_start(self) -> bool:
        """Whether queries wait and the engine is free."""

    def __len__(self) -> int:
        """Return the number of waiting queries."""

    def add(self, query: Query, now: float) -> None:
        """Add a query that has arrived.

        Args:
            query: The query.
            now: Current time, in seconds.

        Raises:
            InvalidArgument: Its deadline is not finite, its utility is below 0, or its task has no accuracy for a γ.
            NotFound: No accuracies of its task are known.
        """

    def remove(self, query: Query) -> bool:
        """Remove a waiting query; returns False if it no longer waits."""

    def clear(self) -> list[Query]:
        """Remove and return all waiting queries."""

    def next(self, now: float) -> Decision:
        """Decide what to start and evict at time `now`; starts a batch whenever that is possible.

        The caller has to call `finished` after the batch has run.
        """

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """Report that the batch has run in some seconds, or failed (None): the engine is free."""
