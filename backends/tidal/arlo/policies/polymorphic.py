"""Polymorphic placement: every worker holds all runtimes and runs the one that fits.

On a device whose one engine serves all lengths (or holds all of them), nothing is gained by binding a worker to a
length, as Arlo must where an instance holds one runtime (Arlo §3.3). What remains to decide is which query goes
next and which others share its batch.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from itertools import count

from tidal.arlo.policies.base import Batch, Query
from tidal.profiles import LatencyProfile

_Entry = tuple[float, int, Query]


class PolymorphicPolicy:
    """Orders waiting queries and forms batches.

    **Order.** A query's key is its arrival plus `service_weight` times its expected service time, or, if that is
    earlier, the last moment at which it can start and still meet its deadline. The smallest key goes first. Short
    queries overtake long ones, but only those that arrived less than `service_weight` × (difference of service
    times) before them: a query's key never changes and every later arrival's key grows with its arrival, so nobody
    starves.

    **Batches.** The first query is joined by others of its length bin, then of the next shorter bins, as long as
    the measured latencies say that the sum of everybody's waiting falls: see `_batch_size`.

    Args:
        runtimes: the runtimes' `max_length` in tokens, ascending.
        profile: measured latency by padded length and batch.
        dynamic: runtimes run at their batch's longest length; otherwise they pad to their `max_length`.
        max_batch: largest batch to form.
        service_weight: how many expected service times a query is held back for; 0 is first come, first served.
    """

    def __init__(
        self,
        runtimes: Sequence[int],
        profile: LatencyProfile,
        *,
        dynamic: bool,
        max_batch: int,
        service_weight: float = 10.0,
    ) -> None:
        self._runtimes = tuple(runtimes)
        self._bins = profile.lengths if dynamic else self._runtimes
        self._dynamic = dynamic
        self._max_batch = min(max_batch, profile.max_batch)
        self._service_weight = service_weight
        self._table = (profile.table_ms / 1e3).tolist()  # seconds by [length][batch]
        self._heaps: list[list[_Entry]] = [[] for _ in self._bins]
        self._deadlines: list[_Entry] = []
        self._tickets = count()
        self._waiting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, query: Query) -> None:
        """Add a waiting query."""
        ticket = next(self._tickets)
        service = self._service(query.length)
        key = query.arrival + self._service_weight * service
        if query.deadline is not None:
            key = min(key, query.deadline - service)
            heapq.heappush(self._deadlines, (query.deadline - service, ticket, query))
        heapq.heappush(self._heaps[self._bin(query.length)], (key, ticket, query))
        self._waiting.add(ticket)

    def clear(self) -> None:
        """Forget everything that waits."""
        self._waiting.clear()
        self._deadlines.clear()
        for heap in self._heaps:
            heap.clear()

    def expired(self, now: float) -> list[Query]:
        """Take out the queries that would miss their deadline even if they ran at once."""
        late: list[Query] = []
        while self._deadlines and self._deadlines[0][0] < now:
            _, ticket, query = heapq.heappop(self._deadlines)
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                late.append(query)
        return late

    def next_batch(self, now: float) -> Batch | None:
        """The batch that a free worker should run now, or None when nothing waits.

        Call `expired` first: a query whose deadline cannot be met is not looked for here.
        """
        self._drop_taken()
        head_bin = min((b for b, heap in enumerate(self._heaps) if heap), key=lambda b: self._heaps[b][0], default=None)
        if head_bin is None:
            return None
        candidates = self._candidates(head_bin)
        size = self._batch_size([entry[2] for entry in candidates], now)
        for entry in candidates[size:]:
            heapq.heappush(self._heaps[self._bin(entry[2].length)], entry)
        chosen = candidates[:size]
        self._waiting.difference_update(ticket for _, ticket, _ in chosen)
        longest = max(query.length for _, _, query in chosen)
        return Batch(bisect.bisect_left(self._runtimes, longest), [query for _, _, query in chosen])

    def _candidates(self, head_bin: int) -> list[_Entry]:
        """Pop the head and those who may join it: its own bin by key, then shorter bins, nearest first."""
        popped: list[_Entry] = []
        for b in range(head_bin, -1, -1):
            heap = self._heaps[b]
            while heap and len(popped) < self._max_batch:
                entry = heapq.heappop(heap)
                if entry[1] in self._waiting:
                    popped.append(entry)
        return popped

    def _batch_size(self, queries: Sequence[Query], now: float) -> int:
        """How many of `queries`, in order, to run together: the first part of the best split of them into batches.

        A batch makes everybody who still waits wait for its latency, so with M queries waiting in all, a split into
        consecutive batches costs the sum of (queries not yet answered) × (latency of the batch). The split with the
        least sum is found exactly, from the last query backwards, in O(len(queries)²). A lone pair shares a pass
        only if that is nearly free; a long queue takes any gain per query.
        """
        waiting, k = len(self._waiting), len(queries)
        if k == 1:
            return 1
        padded = [self._padded(query.length) for query in queries]
        least = [0.0] * (k + 1)
        size = 1
        for start in range(k - 1, -1, -1):
            best, longest = float("inf"), 0
            latest = queries[0].deadline if start == 0 else None
            for end in range(start + 1, k + 1):
                longest = max(longest, padded[end - 1])
                latency = self._table[longest][end - start]
                if start == 0:
                    latest = _earlier(latest, queries[end - 1].deadline)
                    if latest is not None and end > 1 and now + latency > latest:
                        break
                cost = (waiting - start) * latency + least[end]
                if cost < best:
                    best, size = cost, end - start
            least[start] = best
        return size

    def _drop_taken(self) -> None:
        """Let heads go that left as expired, and deadlines of queries that already run."""
        for heap in self._heaps:
            while heap and heap[0][1] not in self._waiting:
                heapq.heappop(heap)
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)

    def _bin(self, length: int) -> int:
        return bisect.bisect_left(self._bins, length)

    def _padded(self, length: int) -> int:
        return length if self._dynamic else self._runtimes[bisect.bisect_left(self._runtimes, length)]

    def _service(self, length: int) -> float:
        return float(self._table[self._padded(length)][1])


def _earlier(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)
