"""Common part of all policies: waiting queries in groups, evictions, and the batch that runs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tidal.errors import InvalidArgument
from tidal.otas.policies.costs import Costs, FloatArray, earnings
from tidal.otas.policies.groups import Group
from tidal.otas.policies.types import Batch, CostProfile, Decision, Query


class GroupedPolicy(ABC):
    """An `OtasPolicy` that groups arriving queries and runs one or several groups as a batch.

    A query is evicted if it would be late even when run now, alone and at the fastest γ, or if its batch starts and
    will end after its deadline, because the engine is busy until then.

    Args:
        profile: Measured costs and accuracies.
        memory_bytes: Memory limit of a batch, in bytes; None for no limit.
    """

    def __init__(self, profile: CostProfile, *, memory_bytes: int | None = None) -> None:
        self._profile = profile
        self._costs = Costs.of(profile, memory_bytes)
        self._groups: list[Group] = []  # in the order of their creation
        self._waiting: dict[Query, tuple[Group, FloatArray]] = {}
        self._running: Batch | None = None

    @property
    def can_start(self) -> bool:
        """Whether queries wait and the engine is free."""
        return bool(self._waiting) and self._running is None

    @property
    def batches(self) -> int:
        """Number of waiting groups (N_B)."""
        return len(self._groups)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, query: Query, now: float) -> None:
        """Add a query that has arrived; see `OtasPolicy`."""
        if not math.isfinite(query.deadline):
            raise InvalidArgument(f"a query's deadline must be finite, got {query.deadline}")
        if not 0 <= query.utility < math.inf:
            raise InvalidArgument(f"utility must be a finite number of at least 0, got {query.utility}")
        earned = earnings(self._profile, query)
        group = self._group_for(query)
        if group is None:
            group = Group(query, earned)
            self._groups.append(group)
        else:
            group.add(query, earned)
        self._waiting[query] = group, earned
        self._added(query, group, earned, now)

    def remove(self, query: Query) -> bool:
        """Remove a query; see `OtasPolicy`."""
        if query not in self._waiting:
            return False
        self._remove_all([query])
        return True

    def clear(self) -> list[Query]:
        """Remove and return all waiting queries."""
        queries = list(self._waiting)
        self._remove_all(queries)
        return queries

    def next(self, now: float) -> Decision:
        """Decide what to start and evict now; see `OtasPolicy`."""
        evicted = self._evict_late(now)
        while self.can_start:
            chosen, gamma_index = self._choose(now)
            queries = sorted(chosen, key=lambda query: query.deadline)
            late = 0
            while late < len(queries) and queries[late].deadline < now + self._seconds(
                gamma_index, len(queries) - late
            ):
                late += 1
            self._remove_all(queries)
            evicted += queries[:late]
            if late < len(queries):
                kept = queries[late:]
                self._running = Batch(kept, self._costs.gammas[gamma_index], self._seconds(gamma_index, len(kept)))
                return Decision(self._running, evicted)
        return Decision(None, evicted)

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """Report that the batch has run or failed; see `OtasPolicy`."""
        self._running = None
        if seconds is not None:
            self._ran(batch, seconds)

    @abstractmethod
    def _group_for(self, query: Query) -> Group | None:
        """Return the group that a new query joins; None for a new group."""

    @abstractmethod
    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        """Choose the waiting queries of the next batch, at least one, and the index of their γ."""

    def _added(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:  # noqa: B027 - optional
        """Called after a query was added to its group."""

    def _ran(self, batch: Batch, seconds: float) -> None:  # noqa: B027 - optional
        """Called with the seconds of a batch that has run."""

    def _seconds(self, gamma_index: int, queries: int) -> float:
        """Return the predicted seconds of a batch."""
        return float(self._costs.seconds[gamma_index, queries])

    def _evict_late(self, now: float) -> list[Query]:
        """Remove the queries that would be late even if they ran alone now."""
        least = now + self._costs.alone_s
        late = [
            query for group in self._groups if group.deadline < least for query in group.queries
            if query.deadline < least
        ]  # fmt: skip
        self._remove_all(late)
        return late

    def _remove_all(self, queries: Sequence[Query]) -> None:
        gone: dict[Group, list[tuple[Query, FloatArray]]] = {}
        for query in queries:
            group, earned = self._waiting.pop(query)
            gone.setdefault(group, []).append((query, earned))
        for group, of_group in gone.items():
            if len(of_group) < len(group):
                group.remove(of_group)
            else:
                self._groups.remove(group)
                self._removed(group)

    def _removed(self, group: Group) -> None:  # noqa: B027 - optional
        """Called after a group was removed."""
