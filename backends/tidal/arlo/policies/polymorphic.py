"""Polymorphic placement: every lane holds all runtimes and runs the one that fits.

If one engine serves all lengths, binding a lane to a length gains nothing, unlike in Arlo, where an instance holds one
runtime (Arlo §3.3). The policy decides which query runs next, which others share its batch, and on how many threads.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from tidal.arlo.policies.base import ArloBatch, ArloQuery
from tidal.arlo.policies.split import best_split, sum_of_waiting
from tidal.profiles import LatencyProfile

_Entry = tuple[float, int, ArloQuery]
# Weight of the newest arrival in the running mean of the number of queries that an arrival finds in the queue, and the
# largest number that counts, as a multiple of the lanes: after a peak, the mean falls below 0.5 within 17 arrivals that
# find nothing. Without the limit, a lone client with long queries was served by one thread of two for 2 seconds.
_QUEUED_WEIGHT = 1 / 8
_QUEUED_PER_LANE = 2
# Weight of the newest run in the running mean of measured over profiled latency: for the mode that ran, and for the
# other mode, which so is tried again some time after it was slow.
_PACE_WEIGHT = 1 / 16
_OTHER_PACE_WEIGHT = 1 / 512
_CACHED_SPLITS = 256


class _Lanes:
    """Equal engine contexts that run concurrently: latency of a batch in seconds by [length][batch], and their indices.

    `pace` is the recent mean of measured over profiled latency. `first(lengths, behind)` is the size of the first batch
    of `best_split` for queries without deadlines. It is cached, since it takes 0.2 ms for 32 queries, and queues of
    short queries are alike.
    """

    def __init__(self, profile: LatencyProfile, indices: range, overhead_s: float) -> None:
        self.table: list[list[float]] = (profile.table_ms / 1e3 + overhead_s).tolist()
        self.indices = indices
        self.pace = 1.0
        self.first = lru_cache(maxsize=_CACHED_SPLITS)(self._first)

    def _first(self, lengths: tuple[int, ...], behind: int) -> int:
        return best_split(lengths, self.table, lanes=len(self.indices), behind=behind)[0]


class PolymorphicPolicy:
    """Orders waiting queries, forms batches, and selects between one engine and several concurrent ones.

    **Order.** A query's key is its arrival plus `service_weight` times its expected service time, or, if that is
    earlier, the latest start that meets its deadline. The smallest key runs first. Short queries overtake only those
    long ones that arrived less than `service_weight` × (difference of service times) earlier. Keys never change and
    later arrivals have larger ones, so no query starves.

    **Batches.** The first query is joined by queries of its length bin, then of the next shorter bins, according to
    the best split into batches (`best_split`).

    **Lanes.** With a `parallel` profile there are two modes: one engine with all threads, which is fastest for a
    single query, and several engines with one thread each, which are fastest for many queries. An idle machine selects
    the mode with the smaller sum of waiting times over the waiting queries and the usual number of further arrivals;
    or the first mode, if only that one meets the deadline of the next query. The modes never run concurrently. The
    sums use the profile times each mode's recent ratio of measured to profiled latency: load of other processes slows
    threads that synchronise more than independent ones, and engines that rarely run at once are faster than profiled.

    Args:
        runtimes: The runtimes' `max_length` in tokens, ascending.
        profile: Measured latency by padded length and batch; its `concurrency` is the number of the first lanes.
        parallel: The same for engines with one thread each, the lanes after those; None: there are none.
        static_upto: Longest `max_length` of the runtimes that pad to it; longer queries run at their batch's longest
            length. 0: no runtime pads.
        max_batch: Maximum batch size.
        service_weight: Weight of the expected service time in the order; 0: first come, first served.
        overhead_s: Time that a batch takes besides its engine, in seconds.
    """

    def __init__(
        self,
        runtimes: Sequence[int],
        profile: LatencyProfile,
        parallel: LatencyProfile | None = None,
        *,
        static_upto: int,
        max_batch: int,
        service_weight: float = 1.0,
        overhead_s: float = 0.0,
    ) -> None:
        self._runtimes = tuple(runtimes)
        static = [length for length in self._runtimes if length <= static_upto]
        self._bins = tuple(sorted({*static, *(each for each in profile.lengths if each > static_upto)}))
        self._static_upto = static_upto
        self._max_batch = min(max_batch, profile.max_batch)
        self._service_weight = service_weight
        self._wide = _Lanes(profile, range(profile.concurrency), overhead_s)
        self._narrow = None
        if parallel is not None:
            indices = range(profile.concurrency, profile.concurrency + parallel.concurrency)
            self._narrow = _Lanes(parallel, indices, overhead_s)
        self._heaps: list[list[_Entry]] = [[] for _ in self._bins]
        self._deadlines: list[tuple[float, int]] = []  # last moment to start, ticket
        self._tickets = count()
        self._waiting: dict[int, ArloQuery] = {}
        self._running: dict[int, int] = {}  # lane to number of queries
        self._mean_queued = 0.0

    @property
    def max_concurrency(self) -> int:
        """Maximum number of concurrent batches."""
        return len(self._wide.indices if self._narrow is None else self._narrow.indices)

    @property
    def can_start(self) -> bool:
        """Whether a query is waiting that a free lane can run."""
        return len(self._waiting) > 0 and self._may_start()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, query: ArloQuery) -> None:
        """Queue a query."""
        found = min(len(self._waiting) + sum(self._running.values()), _QUEUED_PER_LANE * self.max_concurrency)
        self._mean_queued += (found - self._mean_queued) * _QUEUED_WEIGHT
        ticket = next(self._tickets)
        service = self._service(query.length)
        key = query.arrival + self._service_weight * service
        if query.deadline is not None:
            key = min(key, query.deadline - service)
            heapq.heappush(self._deadlines, (query.deadline - service, ticket))
        heapq.heappush(self._heaps[self._bin(query.length)], (key, ticket, query))
        self._waiting[ticket] = query

    def clear(self) -> None:
        """Remove all waiting queries."""
        self._waiting.clear()
        self._deadlines.clear()
        for heap in self._heaps:
            heap.clear()

    def expired(self, now: float) -> list[ArloQuery]:
        """Remove and return the queries that would miss their deadline even if they started now."""
        late: list[ArloQuery] = []
        while self._deadlines and self._deadlines[0][0] < now:
            _, ticket = heapq.heappop(self._deadlines)
            query = self._waiting.pop(ticket, None)
            if query is not None:
                late.append(query)
        return late

    def next_batch(self, now: float) -> ArloBatch | None:
        """Return the batch to start now, or None if no query can start.

        Call `expired` first, since deadlines are not checked here, and `finished` after the batch has run.
        """
        self._drop_stale()
        head_bin = min((b for b, heap in enumerate(self._heaps) if heap), key=lambda b: self._heaps[b][0], default=None)
        if head_bin is None or not self._may_start():
            return None
        candidates = self._candidates(head_bin)
        queries = [entry[2] for entry in candidates]
        lanes = self._lanes(queries, now)
        padded = [self._padded(query.length) for query in queries]
        behind = len(self._waiting) - len(queries)
        if self._deadlines:
            latest = [math.inf if query.deadline is None else query.deadline for query in queries]
            size = best_split(padded, lanes.table, lanes=len(lanes.indices), behind=behind, now=now, latest=latest)[0]
        else:
            size = lanes.first(tuple(padded), behind)
        chosen, back = candidates[:size], candidates[size:]
        for entry in back:
            heapq.heappush(self._heaps[self._bin(entry[2].length)], entry)
        for _, ticket, _ in chosen:
            del self._waiting[ticket]
        lane = next(index for index in lanes.indices if index not in self._running)
        self._running[lane] = len(chosen)
        longest = max(query.length for _, _, query in chosen)
        seconds = lanes.table[self._padded(longest)][len(chosen)] * lanes.pace
        runtime = bisect.bisect_left(self._runtimes, longest)
        return ArloBatch(lane, runtime, [query for _, _, query in chosen], seconds)

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """Free the lane of a batch that has run, in `took` seconds, or failed (None)."""
        self._running.pop(batch.lane, None)
        if took is None or self._narrow is None:
            return
        ran, other = self._wide, self._narrow
        if batch.lane in other.indices:
            ran, other = other, ran
        expected = ran.table[self._padded(max(query.length for query in batch.queries))][len(batch.queries)]
        ran.pace += (took / expected - ran.pace) * _PACE_WEIGHT
        other.pace += (ran.pace - other.pace) * _OTHER_PACE_WEIGHT

    def requeue(self, batch: ArloBatch) -> None:
        """Requeue the queries of a batch that its lane could not run. The lane stays busy until `finished`."""
        for query in batch.queries:
            self.submit(query)

    def _may_start(self) -> bool:
        """Whether a lane is free in the mode that runs, or in any mode on an idle machine."""
        if self._narrow is None or any(lane in self._running for lane in self._wide.indices):
            return len(self._running) < len(self._wide.indices)
        return len(self._running) < len(self._narrow.indices)

    def _lanes(self, queries: Sequence[ArloQuery], now: float) -> _Lanes:
        """Return the lanes of the running mode; on an idle machine, of the one with less waiting time in total."""
        if self._narrow is None or any(lane in self._running for lane in self._wide.indices):
            return self._wide
        if self._running:
            return self._narrow
        head = queries[0]
        if head.deadline is not None and now + self._narrow.table[self._padded(head.length)][1] > head.deadline:
            return self._wide
        here = [self._padded(query.length) for query in queries]
        coming = [here[0]] * min(self._max_batch, max(0, round(self._mean_queued) - len(self._waiting) + 1))
        behind = len(self._waiting) - len(here)

        def waiting(lanes: _Lanes) -> float:
            # Queries that have not arrived yet cannot share a batch with waiting ones.
            split = best_split(here, lanes.table, lanes=len(lanes.indices), behind=len(coming) + behind)
            split += best_split(coming, lanes.table, lanes=len(lanes.indices), behind=behind)
            total = sum_of_waiting([*here, *coming], split, lanes.table, lanes=len(lanes.indices), behind=behind)
            return total * lanes.pace

        return min((self._wide, self._narrow), key=waiting)

    def _candidates(self, head_bin: int) -> list[_Entry]:
        """Pop the first query and those that may join it: its bin by key, then shorter bins, the nearest first."""
        popped: list[_Entry] = []
        for b in range(head_bin, -1, -1):
            heap = self._heaps[b]
            while heap and len(popped) < self._max_batch:
                entry = heapq.heappop(heap)
                if entry[1] in self._waiting:
                    popped.append(entry)
        return popped

    def _drop_stale(self) -> None:
        """Remove expired queries from the heaps' heads, and deadlines of queries that run already."""
        for heap in self._heaps:
            while heap and heap[0][1] not in self._waiting:
                heapq.heappop(heap)
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)

    def _bin(self, length: int) -> int:
        return bisect.bisect_left(self._bins, length)

    def _padded(self, length: int) -> int:
        return length if length > self._static_upto else self._runtimes[bisect.bisect_left(self._runtimes, length)]

    def _service(self, length: int) -> float:
        return float(self._wide.table[self._padded(length)][1])
