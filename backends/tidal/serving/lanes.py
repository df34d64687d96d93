"""Which mode of an engine runs: one context with all threads, or several with one thread each. Pure, as policies are.

Imports nothing of the project; imported by the policies of systems whose engines have both forms.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Weight of the newest arrival in the running mean of the number of queries that an arrival finds in the queue, and the
# largest number that counts, as a multiple of the lanes: after a peak, the mean falls below 0.5 within 17 arrivals that
# find nothing. Without the limit, a lone client with long queries was served by one thread of two for 2 seconds.
_QUEUED_WEIGHT = 1 / 8
_QUEUED_PER_LANE = 2
# An arrival that usually finds fewer queries than this is lone.
_LONE_BELOW = 0.5
# Weight of the newest batch in a mode's pace: of the first batches, which replace a guess, of all others, and of a
# trial, which is rare.
_FIRST_RUNS = 4
_PACE_WEIGHT = 1 / 16
_TRIAL_WEIGHT = 1 / 4
# The first trial moves the pace half of the way: models that were built on a busy machine have profiles that are wrong
# several times, and a lone client was served by the slower mode for 1,000 to 2,000 queries while it moved a quarter.
_FIRST_TRIALS = 2
# Batches of a narrow mode that never idles until the modes are compared again, and the share of its cost that the wide
# mode must save then, because lanes idle while they are drained.
_REVIEW_AFTER = 16
_REVIEW_MARGIN = 0.95
# Batches of one mode until the other is tried, and until it is tried once more, as a multiple of the trial's batch in
# usual batches: trials take at most 1 % of the time, less as the tried mode is worse: they are not the 99th percentile
# of a lone client. Counted in batches and not in seconds: batches of a peak are many times as long as those after it.
_TRIAL_AFTER = 64
_TRIAL_REST = 192
# Batches of one mode after which the other's first batch is not measured.
_COLD_AFTER = 16
_LARGEST_REGRET = 16.0


@dataclass(slots=True, eq=False)
class _Measured:
    """What batches of one mode took under one kind of load.

    Attributes:
        pace: Recent mean of measured over predicted latency.
        batch_s: Recent mean of a batch's seconds.
        runs: Number of measured batches.
        rest: Number of batches of the other mode after which this one is tried.
    """

    pace: float = 1.0
    batch_s: float = 0.0
    runs: int = 0
    rest: float = 0.0


@dataclass(slots=True, eq=False)
class LaneMode:
    """Equal engine contexts that run concurrently.

    Attributes:
        lanes: Numbers of the lanes: one per context, and those of batches that wait for a context.
        contexts: Number of the contexts.
        lone: Measured while arrivals usually find no other query.
        loaded: Measured while they find some.
        unused: Number of batches that the other mode has completed since this one last started one.
    """

    lanes: range
    contexts: int
    lone: _Measured = field(default_factory=_Measured)
    loaded: _Measured = field(default_factory=_Measured)
    unused: int = 0


class LanePolicy:
    """Selects between one engine context with all threads and several with one thread each, which never run at once.

    All threads together answer a single query soonest. Independent threads can answer many queries sooner, also beside
    other processes, since none waits for another one at every layer of a model.

    An idle machine selects the mode with the smaller predicted cost times its pace, the recent ratio of measured to
    predicted latency. A mode has one pace for lone queries and one under load, where lanes that run at once slow each
    other down. Narrow lanes that are never idle are compared again after some batches, and drained if the wide mode is
    better. A mode that has not run for long is tried, whatever the length of the queue: its measured pace and not a
    noisy profile decides. Until then it is expected to gain on its profile as the other mode does. A trial fills each
    lane twice, and the first batches are not measured: the weights of an engine that has not run for long are not in
    the caches. Trials are rarer, the longer and the worse they are.

    Args:
        wide: Number of contexts with all threads; their lanes come first.
        narrow: Number of contexts with one thread; 0: there is only the wide mode.
        queued: Number of batches that may be started in the narrow mode while all its contexts run; the first context
            that is free runs the first of them.
    """

    def __init__(self, wide: int = 1, narrow: int = 0, queued: int = 0) -> None:
        self.wide = LaneMode(range(wide), wide)
        self.narrow = LaneMode(range(wide, wide + narrow + queued), narrow) if narrow else None
        self._most = max(wide, narrow)
        self.max_concurrency = max(wide, narrow + queued if narrow else 0)
        """Maximum number of started batches."""
        self._mode: LaneMode | None = None  # of the running lanes; None: all are idle
        self._running: dict[int, int] = {}  # lane to number of queries
        self._queries = 0  # that run
        self._lone: set[int] = set()  # lanes whose batch was started while queries were lone
        self._cold: set[int] = set()  # lanes whose batch is not measured
        self._draining = False  # whether no batch may start until all lanes are idle
        self._trial: float | None = None  # cost of the tried mode over that of the better one; None: no trial
        self._tried: LaneMode | None = None  # mode of a trial whose first batches run or have run
        self._since_review = 0
        self._mean_queued = 0.0

    @property
    def busy(self) -> int:
        """Number of lanes that run a batch."""
        return len(self._running)

    @property
    def free(self) -> bool:
        """Whether a context may start a batch."""
        if self._mode is None:
            return True
        return not self._draining and len(self._running) < self._mode.contexts

    @property
    def queues(self) -> bool:
        """Whether a batch may be started that waits for a context."""
        if self._mode is None or self._draining:
            return False
        return self._mode.contexts <= len(self._running) < len(self._mode.lanes)

    def note_arrival(self, waiting: int) -> None:
        """Record a query that arrives while `waiting` others wait."""
        found = min(waiting + self._queries, _QUEUED_PER_LANE * self._most)
        self._mean_queued += (found - self._mean_queued) * _QUEUED_WEIGHT

    def pace(self, mode: LaneMode) -> float:
        """Recent ratio of measured to predicted latency of a mode under the present load."""
        measured = self._measured(mode, lone=self._is_lone)
        return measured.pace if measured.runs else self._guess(mode, lone=self._is_lone)

    def coming(self, waiting: int) -> int:
        """Usual number of further queries that arrive soon while `waiting` queries wait."""
        return max(0, round(self._mean_queued) - waiting + 1)

    def select(self, cost: Callable[[LaneMode], float], *, only_wide: bool = False) -> LaneMode | None:
        """Select the mode of the next batch; call it only if `free` or `queues`.

        Args:
            cost: Predicted cost of the waiting queries in a mode, in any unit, without the mode's pace.
            only_wide: Whether only the wide mode meets the deadline of the next query, which counts on an idle machine.

        Returns:
            The mode; None if no batch may start until all lanes are idle.
        """
        if self.narrow is None or self._mode is self.wide:
            return self.wide
        if self._mode is self.narrow and self._since_review < _REVIEW_AFTER:
            return self._mode
        if self._mode is None and only_wide:
            self._trial = self._tried = None
            return self.wide
        if self._mode is None and self._tried is not None:
            tried, self._tried = self._tried, None
            return tried
        self._since_review = 0
        costs = {mode: cost(mode) * self.pace(mode) for mode in (self.wide, self.narrow)}
        if self._mode is not None:
            preferred = costs[self.wide] < _REVIEW_MARGIN * costs[self.narrow]
            self._draining = preferred or self._is_due(self.wide)
            return None if self._draining else self._mode
        best, other = sorted(costs, key=costs.__getitem__)
        if not self._is_due(other):
            return best
        self._trial, self._tried = costs[other] / costs[best] if costs[best] > 0 else 1.0, other
        return other

    def start(self, mode: LaneMode, queries: int) -> int:
        """Start a batch of a number of queries in the selected mode, and return its lane."""
        lane = next(index for index in mode.lanes if index not in self._running)
        self._running[lane] = queries
        self._queries += queries
        if self._is_lone:
            self._lone.add(lane)
        self._mode = mode
        self._since_review += 1
        if self._tried is not None or mode.unused >= _COLD_AFTER:
            self._cold.add(lane)
        mode.unused = 0
        # A part of a trial fills each lane once.
        self._draining = self._trial is not None and len(self._running) == mode.contexts
        return lane

    def finished(self, lane: int, predicted_s: float, took_s: float | None = None) -> None:
        """Free a lane.

        Args:
            lane: Lane whose batch has ended.
            predicted_s: Predicted seconds of the batch, without the mode's pace.
            took_s: Measured seconds; None if not all of the batch ran.
        """
        self._queries -= self._running.pop(lane, 0)
        cold, lone = lane in self._cold, lane in self._lone
        self._cold.discard(lane)
        self._lone.discard(lane)
        if took_s is not None and self.narrow is not None and not cold:
            ran, other = (self.narrow, self.wide) if lane in self.narrow.lanes else (self.wide, self.narrow)
            usual_s = self._measured(other, lone=lone).batch_s
            measured = self._measured(ran, lone=lone)
            if not measured.runs:
                measured.pace = self._guess(ran, lone=lone)
            self._add(measured, took_s / predicted_s, took_s, usual_s)
            other.unused += 1
        if not self._running:
            self._mode, self._draining = None, False
            if self._tried is None:
                self._trial = None

    @property
    def _is_lone(self) -> bool:
        return self._mean_queued < _LONE_BELOW

    @staticmethod
    def _measured(mode: LaneMode, *, lone: bool) -> _Measured:
        return mode.lone if lone else mode.loaded

    def _guess(self, mode: LaneMode, *, lone: bool) -> float:
        """Pace of a mode that was not measured.

        A mode that is faster than its profile was profiled on a busy machine, like the other one. One that is slower
        shares the machine now, which may concern this mode only.
        """
        other = self.narrow if mode is self.wide else self.wide
        return 1.0 if other is None else min(1.0, self._measured(other, lone=lone).pace)

    def _add(self, measured: _Measured, ratio: float, took_s: float, usual_s: float) -> None:
        """Add a batch; `usual_s` are the seconds of a batch of the other mode, 0 if none was measured."""
        weight = max(_PACE_WEIGHT, 1 / (measured.runs + _FIRST_RUNS))
        measured.rest = 0.0
        if self._trial is not None:
            weight = max(weight, _TRIAL_WEIGHT, 1 / (measured.runs + _FIRST_TRIALS))
            relative = took_s / usual_s if usual_s > 0 else 1.0
            measured.rest = _TRIAL_REST * relative * min(max(self._trial, 1.0), _LARGEST_REGRET)
        measured.pace += (ratio - measured.pace) * weight
        measured.batch_s += (took_s - measured.batch_s) * (weight if measured.runs else 1.0)
        measured.runs += 1

    def _is_due(self, mode: LaneMode) -> bool:
        """Whether a mode that does not run should be tried."""
        return mode.unused >= max(_TRIAL_AFTER, self._measured(mode, lone=self._is_lone).rest)


def sum_of_waiting(batches: Iterable[tuple[float, int]], *, lanes: int, behind: int = 0) -> float:
    """Return the sum over queries of the time until each is answered, in seconds.

    Args:
        batches: Seconds and number of queries of consecutive batches; each goes to the first free lane.
        lanes: Number of lanes.
        behind: Number of queries after these, which count as waiting until a lane is free.
    """
    free = [0.0] * lanes
    total = 0.0
    for seconds, queries in batches:
        finish = free[0] + seconds
        heapq.heapreplace(free, finish)
        total += queries * finish
    return total + behind * free[0]
