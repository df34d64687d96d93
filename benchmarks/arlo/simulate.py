"""A placement policy under a virtual clock: what it gives by itself, without a machine's noise and overhead."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from tidal.arlo.policies import ArloBatch, ArloQuery, PlacementPolicy


class FirstComeFirstServed:
    """DT: equal lanes, batch 1, in order of arrival. A `PlacementPolicy`."""

    def __init__(self, lanes: int) -> None:
        self._free = set(range(lanes))
        self._queue: deque[ArloQuery] = deque()
        self.max_concurrency = lanes

    @property
    def can_start(self) -> bool:
        """Whether something waits and a lane is free for it."""
        return bool(self._queue and self._free)

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, query: ArloQuery) -> None:
        """Add a waiting query."""
        self._queue.append(query)

    def clear(self) -> None:
        """Forget everything that waits."""
        self._queue.clear()

    def expired(self, now: float) -> list[ArloQuery]:
        """None: there are no deadlines here."""
        return []

    def next_batch(self, now: float) -> ArloBatch | None:
        """The oldest query."""
        return ArloBatch(self._free.pop(), 0, [self._queue.popleft()]) if self.can_start else None

    def finished(self, batch: ArloBatch) -> None:
        """The lane is free."""
        self._free.add(batch.lane)


def simulate(
    policy: PlacementPolicy, times: Sequence[float], lengths: Sequence[int], seconds: Callable[[ArloBatch], float]
) -> list[float]:
    """Latency in seconds of each query, in the order in which they are answered.

    Args:
        policy: an empty one.
        times: arrivals in seconds, ascending.
        lengths: tokens of each query.
        seconds: how long a batch takes.
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
