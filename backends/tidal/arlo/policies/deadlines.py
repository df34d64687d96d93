"""Deadlines of the queries that wait at instances (partitioned placement)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from tidal.arlo.policies.base import ArloQuery
from tidal.arlo.policies.levels import RuntimeInstance


class WaitingDeadlines:
    """Waiting queries that have a deadline, by the last moment at which their instance may start them.

    A heap with lazy deletion; its length is that of the heap, with stale entries.

    Args:
        latencies_s: Latency of one query padded to each runtime, in seconds.
    """

    def __init__(self, latencies_s: Sequence[float]) -> None:
        self._latencies = latencies_s
        self._instances: dict[ArloQuery, RuntimeInstance] = {}
        self._tickets = count()
        self._heap: list[tuple[float, int, ArloQuery]] = []  # last moment to start, ticket

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, query: ArloQuery, deadline: float, instance: RuntimeInstance) -> None:
        """Add a query that waits at an instance; it may have waited at another one before."""
        self._instances[query] = instance
        heapq.heappush(self._heap, (deadline - self._latencies[instance.runtime], next(self._tickets), query))
        if len(self._heap) > 2 * len(self._instances) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in self._instances]
            heapq.heapify(self._heap)

    def remove(self, query: ArloQuery) -> None:
        """Remove a query that no longer waits."""
        del self._instances[query]

    def clear(self) -> None:
        """Remove all queries."""
        self._instances.clear()
        self._heap.clear()

    def first_late(self, now: float) -> tuple[ArloQuery, RuntimeInstance] | None:
        """Return a query that would miss its deadline if its instance started it now, and the instance; remove neither.

        It is returned once.
        """
        while self._heap and self._heap[0][0] < now:
            query = heapq.heappop(self._heap)[2]
            instance = self._instances.get(query)
            # It may have been dispatched again since, to a faster instance; that dispatch has its own entry.
            if instance is None or query.deadline is None or query.deadline - self._latencies[instance.runtime] >= now:
                continue
            return query, instance
        return None
