"""Queries that are planned for together, and Algorithm 1, which puts a new one to those like it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidal.otas.policies.costs import FloatArray
from tidal.otas.policies.types import Query


class Group:
    """Waiting queries, never empty, with what all of them together would earn (Ū_b) by the place of γ.

    Attributes:
        queries: in the order of arrival.
        earnings: [gammas] sum of the queries'.
        arrival: the earliest (s_b).
        deadline: the earliest (d_b).
        utility: the first query's (u_b).
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
        """The average of the queries' utilities."""
        return sum(query.utility for query in self.queries) / len(self.queries)

    def add(self, query: Query, earnings: FloatArray) -> None:
        """One more."""
        self.queries.append(query)
        self.earnings = self.earnings + earnings
        self.arrival = min(self.arrival, query.arrival)
        self.deadline = min(self.deadline, query.deadline)

    def remove(self, gone: Iterable[tuple[Query, FloatArray]]) -> None:
        """Some fewer; the group may be empty afterwards, and is then of no use any more."""
        for query, earnings in gone:
            self.queries.remove(query)
            self.earnings = self.earnings - earnings
        if self.queries:
            self.arrival = min(query.arrival for query in self.queries)
            self.deadline = min(query.deadline for query in self.queries)


@dataclass(frozen=True, slots=True)
class Batching:
    """Algorithm 1's thresholds.

    Args:
        open_s: seconds after its first arrival in which a batch takes new queries (δ); it may run at any time.
        size: queries of a batch at most (ε).
        deadline_s: difference of deadlines at most (η), seconds.
        utility: difference of utilities at most (μ).
    """

    open_s: float = 0.5
    size: int = 64
    deadline_s: float = 0.5
    utility: float = 0.8

    def find(self, query: Query, groups: Sequence[Group]) -> Group | None:
        """The group that a new query joins, the latest that it fits; None for a group of its own.

        `groups` are in the order in which they began, not in Algorithm 2's: the search ends at the first that is
        closed.
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
