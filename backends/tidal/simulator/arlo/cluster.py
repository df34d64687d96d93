"""Event loop of a cluster: arrivals and completions around a placement policy, under a virtual clock."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from tidal.arlo.policies import ArloBatch, ArloQuery, PlacementPolicy

#: Returns the duration of a batch in seconds.
Seconds = Callable[[ArloBatch], float]


class Cluster:
    """GPUs that run the batches of a placement policy, one batch per lane at a time.

    There are no event objects: arrivals are two lists, completions a heap. A query costs at most 5 µs of one core, two
    thirds of it in the policy.

    Args:
        policy: Empty policy; it is called as by the server, except for `expired`, since queries have no deadlines.
        seconds: Returns the duration of a batch.
        runtimes: Number of runtimes.
    """

    def __init__(self, policy: PlacementPolicy, seconds: Seconds, runtimes: int) -> None:
        self.now = 0.0
        self.latencies: list[float] = []
        """Latencies of the queries answered so far in seconds, in the order of the answers; callers may clear it."""
        self.busy = [0.0] * runtimes
        """GPU time of the batches started so far, by runtime, in seconds."""
        self.failed_batches = 0
        self._policy = policy
        self._seconds = seconds
        self._running: list[tuple[float, int, ArloBatch]] = []
        self._order = count()
        self._down: dict[int, float] = {}  # time of repair by lane
        self._returning: list[tuple[float, int, ArloBatch | None]] = []

    @property
    def running(self) -> int:
        """Number of running batches."""
        return len(self._running)

    @property
    def next_event(self) -> float:
        """Time of the next completion or repair; infinite if there is none."""
        ends = self._running[0][0] if self._running else math.inf
        return min(ends, self._returning[0][0]) if self._returning else ends

    def advance(self, times: Sequence[float], lengths: Sequence[int], until: float) -> None:
        """Process arrivals and completions up to and including a time.

        Args:
            times: Arrival times in seconds, ascending, from `now` to `until`.
            lengths: Lengths in tokens.
            until: Time in seconds, which becomes `now`.
        """
        while self._returning and self._returning[0][0] <= until:
            back = self._returning[0][0]
            cut = bisect_left(times, back)
            self._advance(times[:cut], lengths[:cut], back)
            times, lengths = times[cut:], lengths[cut:]
            _, lane, batch = heappop(self._returning)  # popped only now: a batch may be assigned to it until then
            self._come_back(back, lane, batch)
        self._advance(times, lengths, until)

    def start(self) -> None:
        """Start every batch that can start now; call it after the policy's lanes have changed."""
        while (batch := self._policy.next_batch(self.now)) is not None:
            self._start(batch, self.now)

    def fail(self, lane: int, repair_s: float) -> None:
        """Fail a lane's GPU for `repair_s` seconds, unless it is down already.

        Its running batch is requeued, as by the server when a call to an instance fails. The policy learns of a failed
        idle lane only when it assigns a batch to it.
        """
        if lane in self._down:
            return
        back = self.now + repair_s
        self._down[lane] = back
        running = next((entry for entry in self._running if entry[2].lane == lane), None)
        if running is None:
            heappush(self._returning, (back, lane, None))
            return
        self._running.remove(running)
        heapify(self._running)
        self.busy[running[2].runtime] -= running[0] - self.now
        heappush(self._returning, (back, lane, running[2]))
        self._requeue(running[2])
        self.start()

    def _advance(self, times: Sequence[float], lengths: Sequence[int], until: float) -> None:
        policy, running, down, order, seconds, busy = (
            self._policy,
            self._running,
            self._down,
            self._order,
            self._seconds,
            self.busy,
        )
        submit, next_batch, finished, answered = (
            policy.submit,
            policy.next_batch,
            policy.finished,
            self.latencies.append,
        )
        due = running[0][0] if running else math.inf
        for now, length in zip([*times, until], [*lengths, 0], strict=True):
            while due <= now:
                due, _, batch = heappop(running)
                finished(batch)
                for query in batch.queries:
                    answered(due - query.arrival)
                while (started := next_batch(due)) is not None:
                    if down and started.lane in down:
                        self._refuse(started)
                        continue
                    takes = seconds(started)
                    busy[started.runtime] += takes
                    heappush(running, (due + takes, next(order), started))
                due = running[0][0] if running else math.inf
            if not length:
                break
            submit(ArloQuery(length, now))
            while (started := next_batch(now)) is not None:
                if down and started.lane in down:
                    self._refuse(started)
                    continue
                takes = seconds(started)
                busy[started.runtime] += takes
                heappush(running, (now + takes, next(order), started))
                due = running[0][0]
        self.now = until

    def _start(self, batch: ArloBatch, now: float) -> None:
        if batch.lane in self._down:
            self._refuse(batch)
            return
        takes = self._seconds(batch)
        self.busy[batch.runtime] += takes
        heappush(self._running, (now + takes, next(self._order), batch))

    def _refuse(self, batch: ArloBatch) -> None:
        """Requeue a batch for a failed lane; the lane stays busy until its repair."""
        at = next(i for i, entry in enumerate(self._returning) if entry[1] == batch.lane)
        self._returning[at] = (self._down[batch.lane], batch.lane, batch)
        self._requeue(batch)

    def _requeue(self, batch: ArloBatch) -> None:
        self.failed_batches += 1
        self._policy.requeue(batch)

    def _come_back(self, now: float, lane: int, batch: ArloBatch | None) -> None:
        del self._down[lane]
        if batch is not None:
            self._policy.finished(batch)
        self.start()
