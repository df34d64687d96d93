"""What a policy takes and gives, and what it looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(eq=False, slots=True)
class Query:
    """A waiting query, told apart by identity; times are seconds on whatever clock the caller keeps."""

    task: str
    arrival: float  # s_r
    deadline: float  # d_r, finite
    utility: float = 1.0  # u_r, what an answer that is right and in time is worth; 0 or more


@dataclass(eq=False, slots=True)
class Batch:
    """Queries that are to run together at one γ, never empty; tasks may be mixed."""

    queries: Sequence[Query]
    gamma: int
    seconds: float  # what it is predicted to take


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen now.

    Attributes:
        batch: to start; None when nothing waits or the engine is not free.
        evicted: queries that would not make their deadline any more; they have left the policy and are not run.
    """

    batch: Batch | None
    evicted: Sequence[Query]


class CostProfile(Protocol):
    """What a batch costs and an answer earns by γ, measured; `tidal.otas.profile.Profile` is one."""

    @property
    def gammas(self) -> tuple[int, ...]:
        """The γ list L, ascending."""

    @property
    def max_batch(self) -> int:
        """Largest measured batch."""

    def latency_s(self, gamma: int, batch: int) -> float:
        """Seconds of a batch of 1 to `max_batch` queries."""

    def memory_bytes(self, gamma: int, batch: int) -> int:
        """Memory that a batch takes while it runs (M_b of Eq. 1c)."""

    def accuracy(self, task: str, gamma: int) -> float:
        """Share of a task's answers that are right at γ; raises a `TidalError` for an unknown task."""

    def gamma_for_rate(self, rate: float) -> int:
        """f(q): the γ for an arrival rate in queries a second (Table I)."""


class OtasPolicy(Protocol):
    """Decides which waiting queries run next, together, and at which γ, on one engine.

    Not safe for several threads at once: its caller holds a lock around every call. Every query that was added leaves
    once: in a batch, as evicted, by `remove` or by `clear`. Times never go back from one call to the next.
    """

    @property
    def can_start(self) -> bool:
        """Whether something waits and the engine is free."""

    def __len__(self) -> int:
        """Queries that wait."""

    def add(self, query: Query, now: float) -> None:
        """A query has arrived.

        Raises:
            InvalidArgument: its deadline is not finite, its utility is below 0, or its task has no accuracy for a γ.
            NotFound: nothing is known of its task.
        """

    def remove(self, query: Query) -> bool:
        """Take out a query that was cancelled; False when it does not wait any more."""

    def clear(self) -> list[Query]:
        """Take out everything that waits."""

    def next(self, now: float) -> Decision:
        """What to start and whom to give up now; something is started whenever something can be.

        Tell `finished` when the batch has run.
        """

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """The batch has run, in so many seconds, or failed (None): the engine is free."""
