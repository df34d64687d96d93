"""The multi-level queue: for each runtime a priority queue of its instances (Arlo §3.4, Figure 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from tidal.arlo.policies.base import ArloBatch, ArloQuery
from tidal.errors import InvalidArgument

# A heap entry is one integer of load and order: comparisons dominate the time of a dispatch.
_ORDER_BITS = 24
_ORDER_MASK = (1 << _ORDER_BITS) - 1
_REMOVED = -1


@dataclass(eq=False, slots=True)
class RuntimeInstance:
    """An instance of a runtime with its virtual queue of waiting queries, the oldest first; `node` is None if local."""

    lane: int
    runtime: int
    node: str | None = None
    depth: int = 1  # queries that it is given at a time
    queue: deque[ArloQuery] = field(default_factory=deque)
    waiting: int = 0
    running: int = 0
    added: int = 0  # load beyond its own queries, such as that of a full instance while it is blocked
    returned: list[ArloBatch] = field(default_factory=list)  # batches that it could not run, until they are finished
    level: RuntimeLevel = field(init=False, repr=False)  # that it was arranged in last
    order: int = _REMOVED  # among the instances of that level

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
        return self.waiting > 0 and self.running < self.depth and not self.returned

    @property
    def idle(self) -> bool:
        """Whether no batch of it is left that is not finished."""
        return not self.running and not self.returned

    def finish(self, batch: ArloBatch) -> None:
        """Count a batch of one query no longer that has run, or that it could not run."""
        if batch not in self.returned:
            self.running -= 1
            return
        self.returned.remove(batch)
        if not self.returned:
            self.added -= self.level.capacity

    def give_back(self, batch: ArloBatch) -> None:
        """Count a batch that it could not run; until `finish` it starts nothing, and its load is that of a full one."""
        if not self.returned:
            self.added += self.level.capacity
        self.returned.append(batch)
        self.running -= 1


class RuntimeLevel:
    """The instances of one runtime as a priority queue by load; of equally loaded ones the first is preferred.

    A heap with lazy deletion: stale entries are skipped at the top. Updates are O(log n), so is reading the head on
    average.

    Args:
        max_length: Maximum length of the runtime's queries, in tokens.
        capacity: Queries that one instance finishes within the SLO (CY in Figure 4).
        seconds: Latency of one query padded to the runtime, in seconds.
    """

    def __init__(self, max_length: int, capacity: int, seconds: float) -> None:
        self.max_length = max_length
        self.capacity = capacity
        self.seconds = seconds
        self.others: RuntimeLevel | None = None
        """The runtime's instances that are assigned to other entrances, if there are any apart from these."""
        self._instances: list[RuntimeInstance] = []  # by order
        self._heap: list[int] = []  # load << _ORDER_BITS | order

    def __len__(self) -> int:
        return len(self._instances)

    def __iter__(self) -> Iterator[RuntimeInstance]:
        return iter(self._instances)

    def arrange(self, instances: Iterable[RuntimeInstance]) -> None:
        """Replace the instances, given in the order in which equally loaded ones are preferred."""
        for instance in self._instances:
            instance.order = _REMOVED
        self._instances = list(instances)
        for order, instance in enumerate(self._instances):
            instance.level, instance.order = self, order
        self._rebuild()

    def expected_load(self, share: float) -> float:
        """Return the outstanding queries of all entrances that the head is expected to have.

        Others use these instances as this entrance does, so its own queries are a share of all. If they are assigned to
        this entrance, others send there what this one sends to theirs.

        Args:
            share: Share of the queries that arrive at this entrance.
        """
        load = self.head().load
        return load / share if self.others is None else load + self.others.head().load * (1.0 / share - 1.0)

    def update(self, instance: RuntimeInstance) -> None:
        """Reorder an instance after its load changed; does nothing for a removed one."""
        order, heap = instance.order, self._heap
        if order < 0:
            return
        entry = (instance.waiting + instance.running + instance.added) << _ORDER_BITS | order
        if heap and heap[0] & _ORDER_MASK == order:  # the case after every dispatch: replace its stale entry
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._instances) + 64:
            self._rebuild()

    def head(self) -> RuntimeInstance:
        """Return the least loaded instance.

        Raises:
            IndexError: There are no instances.
        """
        heap, instances = self._heap, self._instances
        while True:
            entry = heap[0]
            instance = instances[entry & _ORDER_MASK]
            if instance.waiting + instance.running + instance.added == entry >> _ORDER_BITS:
                return instance
            heappop(heap)

    def _rebuild(self) -> None:
        self._heap[:] = [each.load << _ORDER_BITS | each.order for each in self._instances]
        heapify(self._heap)


def by_node(instances: Iterable[RuntimeInstance]) -> dict[str | None, list[RuntimeInstance]]:
    """Return the instances of each node (None: local ones), the least loaded first."""
    found: dict[str | None, list[RuntimeInstance]] = {}
    for instance in sorted(instances, key=lambda each: (each.load, each.lane)):
        found.setdefault(instance.node, []).append(instance)
    return found


def fitting_levels(levels: Sequence[RuntimeLevel]) -> list[list[RuntimeLevel]]:
    """Return by length in tokens the levels with instances that fit it, ascending.

    Args:
        levels: All levels, ascending by `max_length`.
    """
    fitting: list[list[RuntimeLevel]] = []
    for at, level in enumerate(levels):
        deployed = [longer for longer in levels[at:] if len(longer)]
        fitting += [deployed] * (level.max_length + 1 - len(fitting))
    return fitting


def count_instances(instances: Iterable[RuntimeInstance], node: str | None, runtimes: int) -> list[int]:
    """Return the number of instances of a node (None: local ones) by runtime."""
    found = [0] * runtimes
    for instance in instances:
        found[instance.runtime] += instance.node == node
    return found


def check_counts(wanted: Mapping[str | None, Sequence[int]], runtimes: int, longest: int) -> None:
    """Check numbers of instances.

    Args:
        wanted: Instances by runtime of each node; None for this one.
        runtimes: Number of runtimes.
        longest: Minimum number of instances of the longest runtime on this node (Eq. 7).

    Raises:
        InvalidArgument: The numbers do not match the runtimes.
    """
    for node, counts in wanted.items():
        if len(counts) != runtimes or min(counts) < 0 or (node is None and counts[-1] < longest):
            where = "" if node is None else f" of node '{node}'"
            least = f", at least {longest} for the longest runtime" if node is None and longest else ""
            raise InvalidArgument(
                f"the allocation {list(counts)}{where} does not match the runtimes; expected {runtimes} counts{least}"
            )
