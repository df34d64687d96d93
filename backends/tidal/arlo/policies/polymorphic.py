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
from itertools import accumulate, count

from tidal.arlo.policies.base import ArloBatch, ArloQuery
from tidal.arlo.policies.split import best_split
from tidal.profiles import LatencyProfile
from tidal.serving.lanes import LaneMode, LanePolicy, sum_of_waiting

_Entry = tuple[float, int, ArloQuery]
_CACHED_SPLITS = 256
# Shortest expected latency of a query that is started before a context is free: shorter ones gain more by waiting for
# others to share their batch.
_QUEUED_FROM_S = 4e-3


class _Lanes:
    """Lanes with latencies of batches in seconds by [length][batch].

    `first(lengths, behind)` is the size of the first batch of `best_split` for queries without deadlines. It is cached,
    since it takes 0.2 ms for 32 queries, and queues of short queries are alike.
    """

    def __init__(self, profile: LatencyProfile, mode: LaneMode, overhead_s: float) -> None:
        self.table: list[list[float]] = (profile.table_ms / 1e3 + overhead_s).tolist()
        self.mode = mode
        self.count = mode.contexts
        self.first = lru_cache(maxsize=_CACHED_SPLITS)(self._first)

    def _first(self, lengths: tuple[int, ...], behind: int) -> int:
        return best_split(lengths, self.table, lanes=self.count, behind=behind)[0]


class PolymorphicPolicy:
    """Orders waiting queries, forms batches, and selects between one engine and several concurrent ones.

    **Order.** A query's key is its arrival plus `service_weight` times its expected service time, or, if that is
    earlier, the latest start that meets its deadline. The smallest key runs first. Short queries overtake only those
    long ones that arrived less than `service_weight` × (difference of service times) earlier. Keys never change and
    later arrivals have larger ones, so no query starves.

    **Batches.** The first query is joined by queries of its length bin, then of the next shorter bins, according to
    the best split into batches (`best_split`).

    **Lanes.** With a `parallel` profile there are two modes, one engine with all threads and several engines with one
    thread each; `LanePolicy` selects the one with the smaller sum of waiting times over the waiting queries and the
    usual number of further arrivals, or the first mode, if only that one meets the deadline of the next query.

    Args:
        runtimes: The runtimes' `max_length` in tokens, ascending.
        profile: Measured latency by padded length and batch; its `concurrency` is the number of the first lanes.
        parallel: The same for engines with one thread each, the lanes after those; None: there are none.
        static_upto: Longest `max_length` of the runtimes that pad to it; longer queries run at their batch's longest
            length. 0: no runtime pads.
        max_batch: Maximum batch size.
        service_weight: Weight of the expected service time in the order; 0: first come, first served.
        overhead_s: Time that a batch takes besides its engine, in seconds.
        queued: Number of batches that are started while all engines with one thread run, so that an engine need not
            wait for its next one; the engines have to queue them.
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
        queued: int = 0,
    ) -> None:
        self._runtimes = tuple(runtimes)
        static = [length for length in self._runtimes if length <= static_upto]
        bins = tuple(sorted({*static, *(each for each in profile.lengths if each > static_upto)}))
        # By length: the length that a query is padded to, and its bin.
        lengths = range(self._runtimes[-1] + 1)
        self._padded = [
            n if n > static_upto else self._runtimes[bisect.bisect_left(self._runtimes, n)] for n in lengths
        ]
        self._bin = [bisect.bisect_left(bins, n) for n in lengths]
        self._max_batch = min(max_batch, profile.max_batch)
        self._service_weight = service_weight
        self._lanes = LanePolicy(profile.concurrency, 0 if parallel is None else parallel.concurrency, queued)
        self._wide = _Lanes(profile, self._lanes.wide, overhead_s)
        self._narrow = None
        if parallel is not None and self._lanes.narrow is not None:
            self._narrow = _Lanes(parallel, self._lanes.narrow, overhead_s)
        self._heaps: list[list[_Entry]] = [[] for _ in bins]
        self._deadlines: list[tuple[float, int]] = []  # last moment to start, ticket
        self._tickets = count()
        self._waiting: dict[int, ArloQuery] = {}

    @property
    def max_concurrency(self) -> int:
        """Maximum number of concurrent batches."""
        return self._lanes.max_concurrency

    @property
    def can_start(self) -> bool:
        """Whether a query is waiting that can be started."""
        return len(self._waiting) > 0 and (self._lanes.free or self._queues(self._head()))

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, query: ArloQuery) -> None:
        """Queue a query."""
        self._lanes.note_arrival(len(self._waiting))
        ticket = next(self._tickets)
        service = self._wide.table[self._padded[query.length]][1]
        key = query.arrival + self._service_weight * service
        if query.deadline is not None:
            key = min(key, query.deadline - service)
            heapq.heappush(self._deadlines, (query.deadline - service, ticket))
        heapq.heappush(self._heaps[self._bin[query.length]], (key, ticket, query))
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
        head_bin = self._head()
        if head_bin is None:
            return None
        queued = not self._lanes.free
        if queued and not self._queues(head_bin):
            return None
        candidates = self._candidates(head_bin)
        queries = [entry[2] for entry in candidates]
        lanes = self._selected(queries, now)
        if lanes is None:
            self._push(candidates)
            return None
        padded = [self._padded[query.length] for query in queries]
        behind = len(self._waiting) - len(queries)
        if self._deadlines:
            latest = [math.inf if query.deadline is None else query.deadline for query in queries]
            size = best_split(padded, lanes.table, lanes=lanes.count, behind=behind, now=now, latest=latest)[0]
        else:
            size = lanes.first(tuple(padded), behind)
        chosen, back = candidates[:size], candidates[size:]
        self._push(back)
        for _, ticket, _ in chosen:
            del self._waiting[ticket]
        lane = self._lanes.start(lanes.mode, len(chosen))
        longest = max(query.length for _, _, query in chosen)
        seconds = lanes.table[self._padded[longest]][len(chosen)] * self._lanes.pace(lanes.mode)
        runtime = bisect.bisect_left(self._runtimes, longest)
        alone = self._lanes.busy == 1 and not self._lanes.free and not self._waiting
        return ArloBatch(lane, runtime, [query for _, _, query in chosen], seconds, alone, queued)

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """Free the lane of a batch that has run, in `took` seconds, or failed (None)."""
        ran = self._wide if self._narrow is None or batch.lane in self._wide.mode.lanes else self._narrow
        longest = max(query.length for query in batch.queries)
        self._lanes.finished(batch.lane, ran.table[self._padded[longest]][len(batch.queries)], took)

    def requeue(self, batch: ArloBatch) -> None:
        """Requeue the queries of a batch that its lane could not run. The lane stays busy until `finished`."""
        for query in batch.queries:
            self.submit(query)

    def _selected(self, queries: Sequence[ArloQuery], now: float) -> _Lanes | None:
        """Return the lanes that run the next of the queries; None if those that run have to end first."""
        narrow = self._narrow
        if narrow is None:
            return self._wide
        head = queries[0]
        only_wide = head.deadline is not None and now + narrow.table[self._padded[head.length]][1] > head.deadline

        def waiting(mode: LaneMode) -> float:
            lanes = self._wide if mode is self._wide.mode else narrow
            here = [self._padded[query.length] for query in queries]
            behind = len(self._waiting) - len(here)
            coming = [here[0]] * min(self._max_batch, self._lanes.coming(len(self._waiting)))
            # Queries that have not arrived yet cannot share a batch with waiting ones.
            split = best_split(here, lanes.table, lanes=lanes.count, behind=len(coming) + behind)
            split += best_split(coming, lanes.table, lanes=lanes.count, behind=behind)
            ends = list(accumulate(split))
            lengths = [*here, *coming]
            batches = [
                (lanes.table[max(lengths[end - size : end])][size], size) for end, size in zip(ends, split, strict=True)
            ]
            return sum_of_waiting(batches, lanes=lanes.count, behind=behind)

        mode = self._lanes.select(waiting, only_wide=only_wide)
        return None if mode is None else self._wide if mode is self._wide.mode else narrow

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

    def _push(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            heapq.heappush(self._heaps[self._bin[entry[2].length]], entry)

    def _queues(self, head_bin: int | None) -> bool:
        """Whether the first query is started before a context is free; one with a deadline may still be overtaken."""
        if head_bin is None or self._deadlines or not self._lanes.queues:
            return False
        return self._wide.table[self._padded[self._heaps[head_bin][0][2].length]][1] >= _QUEUED_FROM_S

    def _head(self) -> int | None:
        """Return the bin of the first query; None if none waits."""
        self._drop_stale()
        return min((b for b, heap in enumerate(self._heaps) if heap), key=lambda b: self._heaps[b][0], default=None)

    def _drop_stale(self) -> None:
        """Remove expired queries from the heaps' heads, and deadlines of queries that run already."""
        for heap in self._heaps:
            while heap and heap[0][1] not in self._waiting:
                heapq.heappop(heap)
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)
