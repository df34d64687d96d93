"""Arrival rate of queries (q)."""

from __future__ import annotations

from collections import deque


class ArrivalRate:
    """Number of arrivals in a sliding window per second; at the start, since the first arrival.

    Args:
        window_s: Length of the window in seconds ("the previous inference window" of §III-D, which gives no length).
    """

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque()
        self._first: float | None = None

    @property
    def first(self) -> float | None:
        """Time of the first arrival, in seconds; None before it."""
        return self._first

    def add(self, now: float) -> None:
        """Add an arrival at time `now`, in seconds."""
        if self._first is None:
            self._first = now
        self._times.append(now)

    def at(self, now: float) -> float:
        """Return the rate at time `now`, in queries per second; 0 before the first arrival.

        At the start, at least a tenth of the window counts, so that two simultaneous queries do not give a huge rate.
        """
        if self._first is None:
            return 0.0
        while self._times and self._times[0] <= now - self._window_s:
            self._times.popleft()
        return len(self._times) / min(self._window_s, max(now - self._first, self._window_s / 10))
