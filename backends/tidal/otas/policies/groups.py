"""Groups of queries that are planned together, and Algorithm 1, which adds a new query to a similar group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidal.otas.policies.costs import FloatArray
from tidal.otas.policies.types import Query


class Group:
    """Waiting queries with their total expected utility (Ū_b) by γ.

    Attributes:
        queries: Queries in the order of arrival, at least one.
        earnings: Sum of the queries' expected utilities, of shape [gammas].
        arrival: Earliest arrival (s_b), in seconds.
        deadline: Earliest deadline (d_b), in seconds.
        utility: Utility of the first query (u_b).
    """

    __slots__ = ("arrival", "deadline", "earnings", "queries", "utility")

    def __init__(self, query: Query, earnings: FloatArray) -> None:
        self.queries = [query]
        self.earnings = earnings
        self.arrival = query.arrival
        self.deadline = query.deadline
        self.utility = query.utility

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def mean_utility(self) -> float:
        """Mean utility of the queries."""
        return sum(query.utility for query in self.queries) / len(self.queries)

    def add(self, query: Query, earnings: FloatArray) -> None:
        """Add a query with its expected utility by γ, of shape [gammas]."""
        self.queries.append(query)
        self.earnings = self.earnings + earnings
        self.arrival = min(self.arrival, query.arrival)
        self.deadline = min(self.deadline, query.deadline)

    def remove(self, gone: Iterable[tuple[Query, FloatArray]]) -> None:
        """Remove queries, given with their expected utilities; a group that becomes empty must not be used further."""
        for query, earnings in gone:
            self.queries.remove(query)
            self.earnings = self.earnings - earnings
        if self.queries:
            self.arrival = min(query.arrival for query in self.queries)
            self.deadline = min(query.deadline for query in self.queries)


@dataclass(frozen=True, slots=True)
class Batching:
    """Thresholds of Algorithm 1.

    Args:
        open_s: Time after its first arrival in which a batch accepts queries (δ), in seconds; it may run at any time.
        size: Maximum number of queries of a batch (ε).
        deadline_s: Maximum difference of deadlines (η), in seconds.
        utility: Maximum difference of utilities (μ).
    """

    open_s: float = 0.5
    size: int = 64
    deadline_s: float = 0.5
    utility: float = 0.8

    def group_for(self, query: Query, groups: Sequence[Group]) -> Group | None:
        """Return the latest group that a new query fits into; None for a new group (Algorithm 1).

        Args:
            query: The new query.
            groups: Groups in the order of their creation, rather than in the order of Algorithm 2; the search ends at
                the first one that is closed.
        """
        for group in reversed(groups):
            if group.arrival + self.open_s < query.arrival:
                return None
            if len(group) >= self.size:
                continue
            if abs(group.deadline - query.deadline) > self.deadline_s:
                continue
            if abs(group.utility - query.utility) > self.utility:
                continue
            return group
        return None
