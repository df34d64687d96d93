"""The event loop: arrivals and completions around a placement policy, under a virtual clock."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from tidal.arlo.policies import ArloBatch, ArloQuery, PlacementPolicy

#: How long a batch takes, seconds.
Seconds = Callable[[ArloBatch], float]


class Cluster:
    """GPUs that run what a placement policy gives them, one batch a lane at a time.

    There is no event object: arrivals are two lists, completions a heap. A query is 5 µs of one core at most, and the
    policy needs two thirds of that.

    Args:
        policy: an empty one; it is called as the server calls it, but for `expired`: queries have no deadlines here.
        seconds: how long each batch takes.
        runtimes: how many there are.
    """

    def __init__(self, policy: PlacementPolicy, seconds: Seconds, runtimes: int) -> None:
        self.now = 0.0
        self.latencies: list[float] = []
        """Seconds from arrival to answer of the queries answered so far, in that order; its reader may empty it."""
        self.busy = [0.0] * runtimes
        """Seconds of GPU time of the batches started so far, by runtime."""
        self.failed_batches = 0
        self._policy = policy
        self._seconds = seconds
        self._running: list[tuple[float, int, ArloBatch]] = []
        self._order = count()
        self._down: dict[int, float] = {}  # lane to when it is back
        self._returning: list[tuple[float, int, ArloBatch | None]] = []

    @property
    def running(self) -> int:
        """Batches that run."""
        return len(self._running)

    @property
    def next_event(self) -> float:
        """When the next batch ends or lane comes back, infinite when there is none."""
        ends = self._running[0][0] if self._running else math.inf
        return min(ends, self._returning[0][0]) if self._returning else ends

    def advance(self, times: Sequence[float], lengths: Sequence[int], until: float) -> None:
        """Let queries arrive and batches end until a moment, what ends at that very moment included.

        Args:
            times: arrivals in seconds, ascending, none before `now` or after `until`.
            lengths: their lengths in tokens.
            until: seconds, `now` afterwards.
        """
        while self._returning and self._returning[0][0] <= until:
            back = self._returning[0][0]
            cut = bisect_left(times, back)
            self._advance(times[:cut], lengths[:cut], back)
            times, lengths = times[cut:], lengths[cut:]
            _, lane, batch = heappop(self._returning)  # only now: until then it may be given a batch
            self._come_back(back, lane, batch)
        self._advance(times, lengths, until)

    def start(self) -> None:
        """Start whatever can start now; to be called after the policy's lanes have changed."""
        while (batch := self._policy.next_batch(self.now)) is not None:
            self._start(batch, self.now)

    def fail(self, lane: int, repair_s: float) -> None:
        """A lane's GPU fails now and is back after `repair_s` seconds; nothing for one that is down.

        What it ran is put back, as the server does when a call to an instance fails. The policy does not hear of an
        idle lane that fails before it has given it a batch.
        """
        if lane in self._down:
            return
        back = self.now + repair_s
        self._down[lane] = back
        mine = next((entry for entry in self._running if entry[2].lane == lane), None)
        if mine is None:
            heappush(self._returning, (back, lane, None))
            return
        self._running.remove(mine)
        heapify(self._running)
        self.busy[mine[2].runtime] -= mine[0] - self.now
        heappush(self._returning, (back, lane, mine[2]))
        self._requeue(mine[2])
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
        """A lane that is down was given a batch: its return is what finishes it."""
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
