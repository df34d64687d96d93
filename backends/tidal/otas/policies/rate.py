"""How many queries arrive a second (q)."""

from __future__ import annotations

from collections import deque


class ArrivalRate:
    """Arrivals in the last window over its seconds; over those since the first arrival while there are fewer.

    Args:
        window_s: the window ("the previous inference window" of §III-D, which gives no length), seconds.
    """

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque()
        self._first: float | None = None

    @property
    def first(self) -> float | None:
        """When the first query arrived, None before."""
        return self._first

    def add(self, now: float) -> None:
        """A query has arrived."""
        if self._first is None:
            self._first = now
        self._times.append(now)

    def at(self, now: float) -> float:
        """Queries a second; 0 before the first.

        A window that has hardly begun counts as a tenth of one: two queries at once are no rate of millions.
        """
        if self._first is None:
            return 0.0
        while self._times and self._times[0] <= now - self._window_s:
            self._times.popleft()
        return len(self._times) / min(self._window_s, max(now - self._first, self._window_s / 10))
