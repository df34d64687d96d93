"""Partitioned placement, the paper's: an instance holds one runtime and has a virtual queue of its own (Arlo §3.4)."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Sequence
from itertools import count
from operator import attrgetter

from tidal.arlo.policies.base import ArloBatch, ArloQuery
from tidal.arlo.policies.levels import RuntimeInstance, RuntimeLevel
from tidal.arlo.scheduling import capacity_within
from tidal.errors import InvalidArgument

_arrival = attrgetter("arrival")


def choose_level(candidates: Sequence[RuntimeLevel], threshold: float, decay: float) -> RuntimeLevel:
    """Algorithm 1, lines 6 to 20: the level whose head instance is to get an arriving request.

    Args:
        candidates: the first L levels that can take the request (Q_e), ascending by max_length, none without instances.
        threshold: congestion below which the first candidate is good enough (λ).
        decay: what the threshold is multiplied with for each longer runtime (α): demotion is conservative.
    """
    for level in candidates:
        congestion = level.head().load / level.capacity  # lines 7 to 9: P = N / C
        if congestion < threshold:  # line 10
            return level
        threshold *= decay  # line 15
    return candidates[0]  # lines 18 to 20


class PartitionedPolicy:
    """Dispatches every query on arrival, by Algorithm 1, to the virtual queue of one instance.

    A lane is one instance of one runtime, with a number that is its own for life. An instance runs one query at a time
    (the paper's fixed batch of 1), the oldest of its own queue.

    Args:
        runtimes: the runtimes' `max_length` in tokens, ascending.
        latencies_s: seconds that one query takes, padded to each runtime.
        slo_s: the stream's latency objective in seconds, which gives the instances their capacity.
        instances: instances by runtime, at least one of the last (Eq. 7).
        threshold: λ of Algorithm 1.
        decay: α of Algorithm 1.
        peek: L of Algorithm 1.

    Raises:
        InvalidArgument: `instances` does not fit the runtimes.
    """

    def __init__(
        self,
        runtimes: Sequence[int],
        latencies_s: Sequence[float],
        slo_s: float,
        instances: Sequence[int],
        *,
        threshold: float = 0.85,
        decay: float = 0.9,
        peek: int = 6,
    ) -> None:
        self._latencies = tuple(latencies_s)
        self._threshold = threshold
        self._decay = decay
        self._peek = peek
        self._levels = [
            self._make_level(max_length, capacity_within(slo_s, latency))
            for max_length, latency in zip(runtimes, latencies_s, strict=True)
        ]
        self._fitting: list[list[RuntimeLevel]] = []  # by length: the levels with instances that can take it, ascending
        self._lanes = count()
        self._instances: dict[int, RuntimeInstance] = {}
        self._leaving: dict[int, RuntimeInstance] = {}
        self._ready: deque[RuntimeInstance] = (
            deque()
        )  # those that could start a query, in the order in which they could
        self._waiting = 0
        self._with_deadline: dict[ArloQuery, RuntimeInstance] = {}  # where those wait that have a deadline
        self._tickets = count()
        self._deadlines: list[tuple[float, int, ArloQuery]] = []  # last moment to start, ticket
        self.demotions = 0
        """Dispatches to another runtime than the shortest deployed one that fits."""
        self.allocate(instances)

    @property
    def max_concurrency(self) -> int:
        """Batches that run at the same time at most: instances, leaving ones included."""
        return len(self._instances)

    @property
    def can_start(self) -> bool:
        """Whether a query waits for an instance that is free."""
        return bool(self._ready)

    @property
    def capacities(self) -> list[int]:
        """Queries that an instance of each runtime finishes within the SLO."""
        return [level.capacity for level in self._levels]

    @property
    def instances(self) -> list[int]:
        """Instances by runtime that may still run something, leaving ones included."""
        counts = [0] * len(self._levels)
        for instance in self._instances.values():
            counts[instance.runtime] += 1
        return counts

    @property
    def lanes(self) -> dict[int, int]:
        """Runtime by lane of every instance, leaving ones included."""
        return {lane: instance.runtime for lane, instance in self._instances.items()}

    @property
    def outstanding(self) -> list[int]:
        """Queries that wait or run, by runtime."""
        counts = [0] * len(self._levels)
        for instance in self._instances.values():
            counts[instance.runtime] += instance.outstanding
        return counts

    def __len__(self) -> int:
        return self._waiting

    def submit(self, query: ArloQuery) -> None:
        """Dispatch an arriving query.

        Raises:
            InvalidArgument: it is longer than the longest runtime.
        """
        if query.length >= len(self._fitting):
            raise InvalidArgument(
                f"a query of {query.length} tokens fits no runtime; the longest takes {self._levels[-1].max_length}"
            )
        self._dispatch(query)

    def clear(self) -> None:
        """Forget everything that waits."""
        self._waiting = 0
        self._with_deadline.clear()
        self._deadlines.clear()
        self._ready.clear()
        for instance in self._instances.values():
            instance.queue.clear()
            instance.waiting = 0
            self._levels[instance.runtime].update(instance)

    def expired(self, now: float) -> list[ArloQuery]:
        """Take out the queries that would miss their own deadline even if their instance ran them at once."""
        late: list[ArloQuery] = []
        while self._deadlines and self._deadlines[0][0] < now:
            query = heapq.heappop(self._deadlines)[2]
            instance = self._with_deadline.get(query)
            # Dispatched anew since, it may have got an instance that is quick enough; that has its own entry.
            if instance is None or query.deadline is None or query.deadline - self._latencies[instance.runtime] >= now:
                continue
            late.append(query)
            if instance.ready and instance.waiting == 1:
                self._ready.remove(instance)
            instance.queue.remove(query)
            self._dequeued(query, instance)
            self._levels[instance.runtime].update(instance)
        return late

    def next_batch(self, now: float) -> ArloBatch | None:
        """The oldest query of an idle instance's queue, or None. Call `expired` first, `finished` when it has run."""
        if not self._ready:
            return None
        instance = self._ready.popleft()
        query = instance.queue.popleft()
        self._dequeued(query, instance)
        instance.running = 1
        return ArloBatch(instance.lane, instance.runtime, [query])

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """A query has run, or failed: its instance is free again, or gone if it was leaving."""
        instance = self._instances[batch.lane]
        instance.running = instance.held = 0
        if batch.lane in self._leaving:
            del self._leaving[batch.lane], self._instances[batch.lane]
            return
        self._levels[instance.runtime].update(instance)
        if instance.waiting:
            self._ready.append(instance)

    def requeue(self, batch: ArloBatch) -> None:
        """An instance could not run its query: the query and all that wait for the instance are dispatched anew.

        Until `finished` the instance starts nothing and counts as having reached its capacity, so that others are
        preferred as far as Algorithm 1 allows.
        """
        instance = self._instances[batch.lane]
        level = self._levels[instance.runtime]
        instance.running, instance.held = 0, level.capacity
        orphans = self._take_queue(instance)
        level.update(instance)
        self._dispatch_again([*batch.queries, *orphans])

    def allocate(self, instances: Sequence[int]) -> None:
        """Change the number of instances by runtime.

        The least loaded leave: one that leaves takes nothing new, what waits for it is dispatched anew, and what it
        runs is finished. Where a runtime grows, instances that were leaving stay before new ones come.

        Raises:
            InvalidArgument: not one number of at least 0 a runtime, or none of the last (Eq. 7); nothing has changed.
        """
        if len(instances) != len(self._levels) or min(instances) < 0 or instances[-1] < 1:
            raise InvalidArgument(
                f"the allocation {list(instances)} does not fit; accepted is a number of instances for each of the "
                f"{len(self._levels)} runtimes, at least 1 for the longest"
            )
        orphans: list[ArloQuery] = []
        for runtime, (level, wanted) in enumerate(zip(self._levels, instances, strict=True)):
            while len(level) > wanted:
                orphans += self._remove_instance(level.head())
            while len(level) < wanted:
                level.add(self._add_instance(runtime))
        self._fitting = []
        for i, level in enumerate(self._levels):
            deployed = [longer for longer in self._levels[i:] if len(longer)]
            self._fitting += [deployed] * (level.max_length + 1 - len(self._fitting))
        self._dispatch_again(orphans)

    def _dispatch(self, query: ArloQuery) -> None:
        """Give a query to an instance of those runtimes that can take it."""
        candidates = self._fitting[query.length]  # line 2
        level, instance = self._choose(candidates)
        if level is not candidates[0]:
            self.demotions += 1
        queue = instance.queue
        if queue and query.arrival < queue[-1].arrival:
            insort(queue, query, key=_arrival)
        else:
            queue.append(query)
        self._waiting += 1
        instance.waiting += 1
        level.update(instance)  # line 22
        if instance.waiting == 1 and not instance.running and not instance.held:
            self._ready.append(instance)
        if query.deadline is not None:
            self._with_deadline[query] = instance
            last_moment = query.deadline - self._latencies[instance.runtime]
            heapq.heappush(self._deadlines, (last_moment, next(self._tickets), query))
            if len(self._deadlines) > 2 * len(self._with_deadline) + 64:
                self._deadlines = [entry for entry in self._deadlines if entry[2] in self._with_deadline]
                heapq.heapify(self._deadlines)

    def _make_level(self, max_length: int, capacity: int) -> RuntimeLevel:
        return RuntimeLevel(max_length, capacity)

    def _choose(self, candidates: Sequence[RuntimeLevel]) -> tuple[RuntimeLevel, RuntimeInstance]:
        """Algorithm 1; DISPATCH and UPDATE (lines 21 and 22) are its caller's."""
        level = candidates[0]
        head = level.head()
        if head.load / level.capacity < self._threshold:  # the rule, so it is worth asking before all else
            return level, head
        level = choose_level(candidates[: self._peek], self._threshold, self._decay)  # lines 3 to 5
        return level, level.head()

    def _dispatch_again(self, orphans: Sequence[ArloQuery]) -> None:
        for query in sorted(orphans, key=_arrival):
            self._dispatch(query)

    def _dequeued(self, query: ArloQuery, instance: RuntimeInstance) -> None:
        """A query waits there no longer."""
        self._waiting -= 1
        instance.waiting -= 1
        if query.deadline is not None:
            del self._with_deadline[query]

    def _take_queue(self, instance: RuntimeInstance) -> list[ArloQuery]:
        """Empty an instance's queue: queries that wait for no instance until they are dispatched."""
        if instance.ready:
            self._ready.remove(instance)
        orphans = list(instance.queue)
        instance.queue.clear()
        for query in orphans:
            self._dequeued(query, instance)
        return orphans

    def _remove_instance(self, instance: RuntimeInstance) -> list[ArloQuery]:
        self._levels[instance.runtime].remove(instance)
        if instance.running or instance.held:
            self._leaving[instance.lane] = instance
        else:
            del self._instances[instance.lane]
        return self._take_queue(instance)

    def _add_instance(self, runtime: int) -> RuntimeInstance:
        """An instance that was leaving, or a new one."""
        for instance in self._leaving.values():
            if instance.runtime == runtime:
                return self._leaving.pop(instance.lane)
        instance = RuntimeInstance(next(self._lanes), runtime)
        self._instances[instance.lane] = instance
        return instance
