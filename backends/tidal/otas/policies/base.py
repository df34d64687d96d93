"""What all policies share: the queries that wait, in groups; who leaves, and in which batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tidal.errors import InvalidArgument
from tidal.otas.policies.costs import Costs, FloatArray, earnings
from tidal.otas.policies.groups import Group
from tidal.otas.policies.types import Batch, CostProfile, Decision, Query


class GroupedPolicy(ABC):
    """An `OtasPolicy` that puts arriving queries into groups and runs one or several groups as a batch.

    A query is evicted when it would be late even if it ran now, alone and at the fastest γ, or when its batch starts
    and would end too late for it: the engine is busy then until it is too late.

    Args:
        profile: measured.
        memory_bytes: that a batch may take; None is no limit.
    """

    def __init__(self, profile: CostProfile, *, memory_bytes: int | None = None) -> None:
        self._profile = profile
        self._costs = Costs.of(profile, memory_bytes)
        self._groups: list[Group] = []  # in the order in which they began
        self._waiting: dict[Query, tuple[Group, FloatArray]] = {}
        self._running: Batch | None = None

    @property
    def can_start(self) -> bool:
        """Whether something waits and the engine is free."""
        return bool(self._waiting) and self._running is None

    @property
    def batches(self) -> int:
        """Groups that wait (N_B)."""
        return len(self._groups)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, query: Query, now: float) -> None:
        """A query has arrived; see `OtasPolicy`."""
        if not math.isfinite(query.deadline):
            raise InvalidArgument(f"a query's deadline must be finite, got {query.deadline}")
        if not 0 <= query.utility < math.inf:
            raise InvalidArgument(f"utility must be a number from 0 on, got {query.utility}")
        earned = earnings(self._profile, query)
        group = self._find(query)
        if group is None:
            group = Group(query, earned)
            self._groups.append(group)
        else:
            group.add(query, earned)
        self._waiting[query] = group, earned
        self._arrived(query, group, earned, now)

    def remove(self, query: Query) -> bool:
        """Take out a query; see `OtasPolicy`."""
        if query not in self._waiting:
            return False
        self._take([query])
        return True

    def clear(self) -> list[Query]:
        """Take out everything that waits."""
        queries = list(self._waiting)
        self._take(queries)
        return queries

    def next(self, now: float) -> Decision:
        """What to start and whom to give up now; see `OtasPolicy`."""
        evicted = self._hopeless(now)
        while self.can_start:
            chosen, place = self._choose(now)
            queries = sorted(chosen, key=lambda query: query.deadline)
            late = 0
            while late < len(queries) and queries[late].deadline < now + self._seconds(place, len(queries) - late):
                late += 1
            self._take(queries)
            evicted += queries[:late]
            if late < len(queries):
                kept = queries[late:]
                self._running = Batch(kept, self._costs.gammas[place], self._seconds(place, len(kept)))
                return Decision(self._running, evicted)
        return Decision(None, evicted)

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """The batch has run, or failed: the engine is free."""
        self._running = None
        if seconds is not None:
            self._ran(batch, seconds)

    @abstractmethod
    def _find(self, query: Query) -> Group | None:
        """The group that a new query joins; None for one of its own."""

    @abstractmethod
    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        """The waiting queries that run now as one batch, at least one, and the place of their γ."""

    def _arrived(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:  # noqa: B027 - optional
        """A query has been put into its group."""

    def _ran(self, batch: Batch, seconds: float) -> None:  # noqa: B027 - optional
        """A batch took so many seconds."""

    def _seconds(self, place: int, queries: int) -> float:
        """What a batch is predicted to take."""
        return float(self._costs.seconds[place, queries])

    def _hopeless(self, now: float) -> list[Query]:
        """Take out the queries that would be late even alone."""
        least = now + self._costs.alone_s
        late = [
            query for group in self._groups if group.deadline < least for query in group.queries
            if query.deadline < least
        ]  # fmt: skip
        self._take(late)
        return late

    def _take(self, queries: Sequence[Query]) -> None:
        gone: dict[Group, list[tuple[Query, FloatArray]]] = {}
        for query in queries:
            group, earned = self._waiting.pop(query)
            gone.setdefault(group, []).append((query, earned))
        for group, of_group in gone.items():
            if len(of_group) < len(group):
                group.remove(of_group)
            else:
                self._groups.remove(group)
                self._forget(group)

    def _forget(self, group: Group) -> None:  # noqa: B027 - optional
        """A group is gone."""
