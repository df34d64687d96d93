"""Simulation of a placement policy with a virtual clock, without the noise and overhead of a machine."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from tidal.arlo.policies import ArloBatch, ArloQuery, PlacementPolicy


class FirstComeFirstServed:
    """The `PlacementPolicy` of DT: equal lanes, batch 1, in order of arrival."""

    def __init__(self, lanes: int) -> None:
        self._free = set(range(lanes))
        self._queue: deque[ArloQuery] = deque()
        self.max_concurrency = lanes

    @property
    def can_start(self) -> bool:
        """Whether a query waits and a lane is free."""
        return bool(self._queue and self._free)

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, query: ArloQuery) -> None:
        """Add a query to the queue."""
        self._queue.append(query)

    def clear(self) -> None:
        """Drop all waiting queries."""
        self._queue.clear()

    def expired(self, now: float) -> list[ArloQuery]:
        """Return no queries: there are no deadlines."""
        return []

    def next_batch(self, now: float) -> ArloBatch | None:
        """Start the oldest query, if a lane is free."""
        return ArloBatch(self._free.pop(), 0, [self._queue.popleft()]) if self.can_start else None

    def requeue(self, batch: ArloBatch) -> None:
        """Return the query of a batch to the head of the queue; its lane stays busy until `finished`."""
        self._queue.extendleft(reversed(batch.queries))

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        """Free the lane of a batch."""
        self._free.add(batch.lane)


def simulate(
    policy: PlacementPolicy, times: Sequence[float], lengths: Sequence[int], seconds: Callable[[ArloBatch], float]
) -> list[float]:
    """Return the latency of each query in seconds, in the order of the answers.

    Args:
        policy: Policy without waiting queries.
        times: Arrival times in seconds, ascending.
        lengths: Number of tokens of each query.
        seconds: Function that returns the duration of a batch in seconds.
    """
    order = count()
    events: list[tuple[float, int, ArloQuery | ArloBatch]] = [
        (time, next(order), ArloQuery(length, time)) for time, length in zip(times, lengths, strict=True)
    ]
    latencies: list[float] = []
    while events:
        now, _, event = heapq.heappop(events)
        if isinstance(event, ArloQuery):
            policy.submit(event)
        else:
            policy.finished(event)
            latencies += [now - query.arrival for query in event.queries]
        while (batch := policy.next_batch(now)) is not None:
            heapq.heappush(events, (now + seconds(batch), next(order), batch))
    return latencies
