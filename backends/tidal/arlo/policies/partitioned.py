"""Partitioned placement: each instance holds one runtime and has its own virtual queue (Arlo §3.4)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, chain, count
from operator import attrgetter

from tidal.arlo.policies.assigned import OthersLevel, divide
from tidal.arlo.policies.base import ArloBatch, ArloQuery
from tidal.arlo.policies.deadlines import WaitingDeadlines
from tidal.arlo.policies.levels import (
    RuntimeInstance,
    RuntimeLevel,
    by_node,
    check_counts,
    count_instances,
    fitting_levels,
)
from tidal.arlo.policies.rules import CongestionRule, DispatchRule
from tidal.arlo.scheduling import capacity_within
from tidal.errors import InvalidArgument

# Depth of a front. It needs about 1 ms from an instance's answer to the next query, and a hop to another node besides.
SERVED_DEPTH = 2
_arrival, _lane = attrgetter("arrival"), attrgetter("lane")


class PartitionedPolicy:
    """Dispatches each query on arrival to the virtual queue of one instance (Arlo §3.4).

    A lane is one instance of a runtime, with a number that is not reused. An instance runs one query at a time, the
    oldest of its queue (the paper's fixed batch size of 1). Instances of other nodes are dispatched to by the same
    rule; of equally loaded instances, local ones are preferred, then those of the first nodes.

    Args:
        runtimes: The runtimes' `max_length` in tokens, ascending.
        latencies_s: Latency of one query padded to each runtime, in seconds; a longer runtime that is faster was
            measured so by noise, and counts as fast as the shorter ones.
        slo_s: Latency objective in seconds, which determines the capacity of instances.
        instances: Local instances by runtime, at least one of the last (Eq. 7) unless nothing is submitted.
        rule: Rule that chooses the runtime; None: Algorithm 1 with the paper's parameters.
        depth: Queries that an instance is given at a time: with 2 it has the next one while it runs one, and does not
            idle until that has been sent.
        accepts: Whether queries are submitted; see `allocate`.

    Raises:
        InvalidArgument: `instances` does not match the runtimes.
    """

    def __init__(
        self,
        runtimes: Sequence[int],
        latencies_s: Sequence[float],
        slo_s: float,
        instances: Sequence[int],
        *,
        rule: DispatchRule | None = None,
        depth: int = 1,
        accepts: bool = True,
    ) -> None:
        self._rule = rule or CongestionRule()
        self._depth, self._share = depth, 1.0
        self._levels = [
            self._make_level(max_length, capacity_within(slo_s, latency), seconds)
            for max_length, latency, seconds in zip(runtimes, latencies_s, accumulate(latencies_s, max), strict=True)
        ]
        self._levels_of_others = [OthersLevel(each.max_length, each.capacity, each.seconds) for each in self._levels]
        self._lanes = count()
        self._instances: dict[int, RuntimeInstance] = {}
        self._leaving: dict[int, RuntimeInstance] = {}
        # Instances that can start a query, in the order they became ready.
        self._ready: deque[RuntimeInstance] = deque()
        self._waiting = 0
        self._deadlines = WaitingDeadlines(tuple(latencies_s))
        self.demotions = 0
        """Dispatches to a longer runtime than the shortest deployed one that fits."""
        self.allocate(instances, accepts=accepts)

    @property
    def max_concurrency(self) -> int:
        """Maximum number of concurrent batches of all instances, including leaving ones."""
        return self._depth * len(self._instances)

    @property
    def can_start(self) -> bool:
        """Whether a query is waiting for a free instance."""
        return bool(self._ready)

    @property
    def instances(self) -> list[int]:
        """Local instances by runtime, including leaving ones."""
        return count_instances(self._instances.values(), None, len(self._levels))

    @property
    def lanes(self) -> dict[int, int]:
        """Runtime of each instance by lane, including leaving ones."""
        return {lane: instance.runtime for lane, instance in self._instances.items()}

    @property
    def remote(self) -> dict[str, list[int]]:
        """Instances by runtime of each other node, including leaving ones."""
        every, runtimes = self._instances.values(), len(self._levels)
        return {node: count_instances(every, node, runtimes) for node in sorted(set(self.remote_lanes.values()))}

    @property
    def remote_lanes(self) -> dict[int, str]:
        """Node of each remote instance by lane, including leaving ones."""
        return {lane: its.node for lane, its in self._instances.items() if its.node is not None}

    @property
    def outstanding(self) -> list[int]:
        """Waiting and running queries by runtime."""
        each = list(self._instances.values())
        return [sum(i.outstanding for i in each if i.runtime == runtime) for runtime in range(len(self._levels))]

    def __len__(self) -> int:
        return self._waiting

    def submit(self, query: ArloQuery) -> None:
        """Dispatch an arriving query.

        Raises:
            InvalidArgument: The query is longer than the longest runtime.
        """
        if query.length >= len(self._fitting):
            raise InvalidArgument(
                f"a query has {query.length} tokens; the longest runtime accepts {self._levels[-1].max_length}"
            )
        self._dispatch(query)

    def clear(self) -> None:
        """Remove all waiting queries."""
        self._waiting = 0
        self._deadlines.clear()
        self._ready.clear()
        for instance in self._instances.values():
            instance.queue.clear()
            instance.waiting = 0
            instance.level.update(instance)

    def expired(self, now: float) -> list[ArloQuery]:
        """Remove and return the queries that would miss their deadline even if their instance started them now."""
        late: list[ArloQuery] = []
        while (found := self._deadlines.first_late(now)) is not None:
            query, instance = found
            late.append(query)
            if instance.ready and instance.waiting == 1:
                self._ready.remove(instance)
            instance.queue.remove(query)
            self._dequeued(query, instance)
            instance.level.update(instance)
        return late

    def next_batch(self, now: float) -> ArloBatch | None:
        """Return the oldest query of an instance that can start one; call `expired` first, `finished` after it ran."""
        if not self._ready:
            return None
        instance = self._ready.popleft()
        query = instance.queue.popleft()
        self._dequeued(query, instance)
        instance.running += 1
        if instance.ready:
            self._ready.append(instance)
        return ArloBatch(instance.lane, instance.runtime, [query])

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """Free the instance of a query that has run or failed; remove the instance if it was leaving."""
        instance = self._instances[batch.lane]
        was_ready = instance.ready
        instance.finish(batch)
        if batch.lane in self._leaving:
            if instance.idle:
                del self._leaving[batch.lane], self._instances[batch.lane]
            return
        instance.level.update(instance)
        if instance.ready and not was_ready:
            self._ready.append(instance)

    def requeue(self, batch: ArloBatch) -> None:
        """Dispatch the query that an instance could not run, and its waiting queries, again.

        Until `finished` the instance starts nothing and is as loaded as a full one, so that others are preferred.
        """
        instance = self._instances[batch.lane]
        orphans = self._take_queue(instance)
        instance.give_back(batch)
        instance.level.update(instance)
        self._dispatch_again([*batch.queries, *orphans])

    def allocate(
        self,
        instances: Sequence[int],
        remote: Mapping[str, Sequence[int]] | None = None,
        share: float = 1.0,
        assigned: Collection[str] = (),
        *,
        accepts: bool = True,
    ) -> None:
        """Change the number of instances by runtime.

        The least loaded instances leave: a leaving instance finishes what it runs, and its waiting queries are
        dispatched again. If a runtime grows, leaving instances are kept before new ones are added.

        Args:
            instances: Local instances by runtime, at least one of the last (Eq. 7) if queries come or are outstanding.
            remote: Instances by runtime of each other node, in the order in which equally loaded ones are preferred;
                None if there is none.
            share: Share of the queries for these instances that this policy dispatches (`RuntimeLevel.expected_load`).
            assigned: Nodes of `remote` whose instances this policy uses first, and others do not.
            accepts: Whether queries are submitted.

        Raises:
            InvalidArgument: The numbers do not match the runtimes; nothing has changed.
        """
        wanted: dict[str | None, Sequence[int]] = {None: instances}
        wanted.update((node, counts) for node, counts in (remote or {}).items())
        check_counts(wanted, len(self._levels), int(accepts or any(self.outstanding)))
        gone = {instance.node for instance in self._instances.values()}.difference(wanted)
        orphans, arranged, none = list[ArloQuery](), list[list[RuntimeInstance]](), [0] * len(self._levels)
        for runtime, levels in enumerate(zip(self._levels, self._levels_of_others, strict=True)):
            before, staying = by_node(chain(*levels)), list[RuntimeInstance]()
            for node in (*wanted, *gone):
                number, present = wanted.get(node, none)[runtime], before.get(node, [])
                leaving = max(0, len(present) - number)
                for instance in present[:leaving]:
                    orphans += self._remove_instance(instance)
                added = [self._add_instance(runtime, node) for _ in range(number - len(present))]
                staying += sorted([*present[leaving:], *added], key=_lane)
            arranged.append(staying)
        self._share = share if remote else 1.0
        divide(self._levels, self._levels_of_others, arranged, assigned, self._share if self._rule.divides else 1.0)
        self._fitting = fitting_levels(list(chain(*zip(self._levels, self._levels_of_others, strict=True))))
        self._dispatch_again(orphans)

    def _dispatch(self, query: ArloQuery) -> None:
        """Queue a query at an instance of a runtime that fits it."""
        candidates = self._fitting[query.length]  # line 2
        level, instance = self._choose(candidates)
        if level.max_length > candidates[0].max_length:
            self.demotions += 1
        queue = instance.queue
        if queue and query.arrival < queue[-1].arrival:
            insort(queue, query, key=_arrival)
        else:
            queue.append(query)
        self._waiting += 1
        instance.waiting += 1
        level.update(instance)  # line 22
        if instance.waiting == 1 and instance.running < instance.depth and not instance.returned:
            self._ready.append(instance)
        if query.deadline is not None:
            self._deadlines.add(query, query.deadline, instance)

    def _make_level(self, max_length: int, capacity: int, seconds: float) -> RuntimeLevel:
        return RuntimeLevel(max_length, capacity, seconds)

    def _choose(self, candidates: Sequence[RuntimeLevel]) -> tuple[RuntimeLevel, RuntimeInstance]:
        """Select a level and its head instance; the caller does DISPATCH and UPDATE (lines 21 and 22)."""
        level = self._rule.choose(candidates, self._share)
        return level, level.head()

    def _dispatch_again(self, orphans: Sequence[ArloQuery]) -> None:
        for query in sorted(orphans, key=_arrival):
            self._dispatch(query)

    def _dequeued(self, query: ArloQuery, instance: RuntimeInstance) -> None:
        """Update the counts after a query left an instance's queue."""
        self._waiting -= 1
        instance.waiting -= 1
        if query.deadline is not None:
            self._deadlines.remove(query)

    def _take_queue(self, instance: RuntimeInstance) -> list[ArloQuery]:
        """Empty an instance's queue and return its queries."""
        if instance.ready:
            self._ready.remove(instance)
        orphans = list(instance.queue)
        instance.queue.clear()
        for query in orphans:
            self._dequeued(query, instance)
        return orphans

    def _remove_instance(self, instance: RuntimeInstance) -> list[ArloQuery]:
        if instance.idle:
            del self._instances[instance.lane]
        else:
            self._leaving[instance.lane] = instance
        return self._take_queue(instance)

    def _add_instance(self, runtime: int, node: str | None) -> RuntimeInstance:
        """Return an instance that was leaving, or a new one."""
        for instance in self._leaving.values():
            if instance.runtime == runtime and instance.node == node:
                return self._leaving.pop(instance.lane)
        instance = RuntimeInstance(next(self._lanes), runtime, node, self._depth)
        self._instances[instance.lane] = instance
        return instance
