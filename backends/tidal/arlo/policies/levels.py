"""The multi-level queue: for each runtime a priority queue of its instances (Arlo §3.4, Figure 5)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tidal.arlo.policies.base import Query

# When a queue entry came first: its query's arrival, then the order of submission.
Waiting = tuple[float, int, Query]


@dataclass(eq=False, slots=True)
class Instance:
    """One instance of a runtime, with its virtual queue: the queries that wait for it, the oldest first."""

    lane: int
    runtime: int
    queue: list[Waiting] = field(default_factory=list)  # a heap; may still hold queries that have left
    waiting: int = 0
    running: int = 0
    held: int = 0  # requests that it counts for while it cannot run any

    @property
    def outstanding(self) -> int:
        """Queries in its queue and in execution (OR in Figure 4)."""
        return self.waiting + self.running

    @property
    def load(self) -> int:
        """What it is ordered by: outstanding queries, and more while it cannot run."""
        return self.waiting + self.running + self.held

    @property
    def ready(self) -> bool:
        """Whether it could start a query that waits for it."""
        return self.waiting > 0 and not self.running and not self.held


class Level:
    """One runtime's instances, the least loaded at the head; among equals the one that has been there longest.

    A heap whose entries are not removed when they become stale but passed over when they reach the top: O(log n) for
    a change, and for a look at the head on average.

    Args:
        max_length: longest query in tokens that the runtime takes.
        capacity: queries that one instance finishes within the SLO (CY in Figure 4).
    """

    def __init__(self, max_length: int, capacity: int) -> None:
        self.max_length = max_length
        self.capacity = capacity
        self._instances: dict[int, Instance] = {}
        self._heap: list[tuple[int, int]] = []  # load, lane

    def __len__(self) -> int:
        return len(self._instances)

    def add(self, instance: Instance) -> None:
        """Let an instance take queries."""
        self._instances[instance.lane] = instance
        self.update(instance)

    def remove(self, instance: Instance) -> None:
        """Let an instance take none any more."""
        del self._instances[instance.lane]

    def update(self, instance: Instance) -> None:
        """To be called after every change of an instance's load; nothing for one that was removed."""
        if instance.lane not in self._instances:
            return
        heapq.heappush(self._heap, (instance.load, instance.lane))
        if len(self._heap) > 2 * len(self._instances) + 64:
            self._heap = [(each.load, each.lane) for each in self._instances.values()]
            heapq.heapify(self._heap)

    def head(self) -> Instance:
        """The least loaded instance.

        Raises:
            IndexError: the level has no instances.
        """
        while True:
            load, lane = self._heap[0]
            instance = self._instances.get(lane)
            if instance is not None and instance.load == load:
                return instance
            heapq.heappop(self._heap)
