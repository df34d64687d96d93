"""The multi-level queue: for each runtime a priority queue of its instances (Arlo §3.4, Figure 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from tidal.arlo.policies.base import ArloQuery
from tidal.errors import InvalidArgument

# A heap entry is one integer of load and lane: comparisons dominate the time of a dispatch.
_LANE_BITS = 40
_LANE_MASK = (1 << _LANE_BITS) - 1


@dataclass(eq=False, slots=True)
class RuntimeInstance:
    """An instance of a runtime with its virtual queue of waiting queries, the oldest first; `node` is None if local."""

    lane: int
    runtime: int
    node: str | None = None
    queue: deque[ArloQuery] = field(default_factory=deque)
    waiting: int = 0
    running: int = 0
    added: int = 0  # load beyond its own queries, such as that of a full instance while it is blocked
    blocked: bool = False  # whether it cannot run any query

    @property
    def outstanding(self) -> int:
        """Queries in its queue and in execution (OR in Figure 4)."""
        return self.waiting + self.running

    @property
    def load(self) -> int:
        """Key of the heap: outstanding queries and added load."""
        return self.waiting + self.running + self.added

    @property
    def ready(self) -> bool:
        """Whether it can start a query of its queue."""
        return self.waiting > 0 and not self.running and not self.blocked


class RuntimeLevel:
    """The instances of one runtime as a priority queue by load; ties go to the lowest lane.

    A heap with lazy deletion: stale entries are skipped at the top. Updates are O(log n), so is reading the head on
    average.

    Args:
        max_length: Maximum length of the runtime's queries, in tokens.
        capacity: Queries that one instance finishes within the SLO (CY in Figure 4).
    """

    def __init__(self, max_length: int, capacity: int) -> None:
        self.max_length = max_length
        self.capacity = capacity
        self._instances: dict[int, RuntimeInstance] = {}
        self._heap: list[int] = []  # load << _LANE_BITS | lane

    def __len__(self) -> int:
        return len(self._instances)

    def add(self, instance: RuntimeInstance) -> None:
        """Add an instance."""
        self._instances[instance.lane] = instance
        self.update(instance)

    def remove(self, instance: RuntimeInstance) -> None:
        """Remove an instance."""
        del self._instances[instance.lane]

    def instances_of(self, node: str | None) -> list[RuntimeInstance]:
        """Return the instances on a node (None: local ones), the least loaded first."""
        own = [instance for instance in self._instances.values() if instance.node == node]
        return sorted(own, key=lambda instance: (instance.load, instance.lane))

    def update(self, instance: RuntimeInstance) -> None:
        """Reorder an instance after its load changed; does nothing for a removed one."""
        lane, heap = instance.lane, self._heap
        if lane not in self._instances:
            return
        entry = (instance.waiting + instance.running + instance.added) << _LANE_BITS | lane
        if heap and heap[0] & _LANE_MASK == lane:  # the case after every dispatch: replace its stale entry
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._instances) + 64:
            heap[:] = [each.load << _LANE_BITS | each.lane for each in self._instances.values()]
            heapify(heap)

    def head(self) -> RuntimeInstance:
        """Return the least loaded instance.

        Raises:
            IndexError: There are no instances.
        """
        heap, instances = self._heap, self._instances
        while True:
            entry = heap[0]
            instance = instances.get(entry & _LANE_MASK)
            if instance and instance.waiting + instance.running + instance.added == entry >> _LANE_BITS:
                return instance
            heappop(heap)


def check_counts(node: str | None, counts: Sequence[int], runtimes: int) -> None:
    """Check the numbers of instances of a node.

    Args:
        node: Name of the node; None for this one, which has at least one instance of the longest runtime (Eq. 7).
        counts: Instances by runtime.
        runtimes: Number of runtimes.

    Raises:
        InvalidArgument: The numbers do not match the runtimes.
    """
    if len(counts) != runtimes or min(counts) < 0 or (node is None and counts[-1] < 1):
        where, least = ("", ", at least 1 for the longest runtime") if node is None else (f" of node '{node}'", "")
        raise InvalidArgument(
            f"the allocation {list(counts)}{where} does not match the runtimes; expected {runtimes} counts{least}"
        )
