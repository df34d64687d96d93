"""The multi-level queue: for each runtime a priority queue of its instances (Arlo §3.4, Figure 5)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from tidal.arlo.policies.base import ArloQuery

# A heap entry is one number, load and lane: comparing two of them is what a dispatch spends most of its time on.
_LANE_BITS = 40
_LANE_MASK = (1 << _LANE_BITS) - 1


@dataclass(eq=False, slots=True)
class RuntimeInstance:
    """One instance of a runtime, with its virtual queue: the queries that wait for it, the oldest first."""

    lane: int
    runtime: int
    queue: deque[ArloQuery] = field(default_factory=deque)
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


class RuntimeLevel:
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
        self._instances: dict[int, RuntimeInstance] = {}
        self._heap: list[int] = []  # load << _LANE_BITS | lane

    def __len__(self) -> int:
        return len(self._instances)

    def add(self, instance: RuntimeInstance) -> None:
        """Let an instance take queries."""
        self._instances[instance.lane] = instance
        self.update(instance)

    def remove(self, instance: RuntimeInstance) -> None:
        """Let an instance take none any more."""
        del self._instances[instance.lane]

    def update(self, instance: RuntimeInstance) -> None:
        """To be called after every change of an instance's load; nothing for one that was removed."""
        lane, heap = instance.lane, self._heap
        if lane not in self._instances:
            return
        entry = (instance.waiting + instance.running + instance.held) << _LANE_BITS | lane
        if heap and heap[0] & _LANE_MASK == lane:  # as after every dispatch: its last entry is of no more use
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._instances) + 64:
            heap[:] = [each.load << _LANE_BITS | each.lane for each in self._instances.values()]
            heapify(heap)

    def head(self) -> RuntimeInstance:
        """The least loaded instance.

        Raises:
            IndexError: the level has no instances.
        """
        heap, instances = self._heap, self._instances
        while True:
            entry = heap[0]
            instance = instances.get(entry & _LANE_MASK)
            if instance and instance.waiting + instance.running + instance.held == entry >> _LANE_BITS:
                return instance
            heappop(heap)
