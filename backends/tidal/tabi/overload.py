"""When to serve by a faster candidate: under overload, as long as it lasts."""

from __future__ import annotations

import math
from collections.abc import Sequence

# The excess is averaged over about this time, and forgotten in it when no query comes.
_SMOOTHING_S = 1.0
# So many queries without any excess are always counted in: a few slow ones are no overload.
_PRIOR_QUERIES = 10
# After a step its effect is waited for before the next one.
_SETTLE_S = 2.0
# The way back begins when the excess has been below half of the limit for this long.
_CALM_S = 10.0


class Overload:
    """Walks along a ladder of candidates: to a faster one while queries wait too long, back when they no longer do.

    Args:
        ladder: indices of candidates, first the one that serves without overload, then ever faster ones.
        limit_ms: milliseconds that queries may wait beyond what their levels take alone.
    """

    def __init__(self, ladder: Sequence[int], limit_ms: float) -> None:
        self._ladder = tuple(ladder)
        self._limit_ms = limit_ms
        # Of the latest queries, weighted by their age.
        self._sum_ms = 0.0
        self._count = 0.0
        self._observed = -math.inf
        self._step = 0
        self._stepped = -math.inf
        self._calm_since: float | None = None

    def observe(self, now: float, excess_ms: float) -> None:
        """A level has answered: how much longer than expected it took from when the query was ready for it.

        Args:
            now: seconds.
            excess_ms: milliseconds; below 0 counts as 0.
        """
        weight = self._weight(now)
        self._sum_ms = self._sum_ms * weight + max(excess_ms, 0.0)
        self._count = self._count * weight + 1
        self._observed = max(now, self._observed)

    def excess_ms(self, now: float) -> float:
        """The mean excess of late."""
        weight = self._weight(now)
        return self._sum_ms * weight / (self._count * weight + _PRIOR_QUERIES)

    def candidate(self, now: float) -> int:
        """Index of the candidate that serves now."""
        excess_ms = self.excess_ms(now)
        if excess_ms >= self._limit_ms / 2:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        if now - self._stepped >= _SETTLE_S:
            if excess_ms > self._limit_ms and self._step + 1 < len(self._ladder):
                self._step, self._stepped = self._step + 1, now
            elif self._step and self._calm_since is not None and now - self._calm_since >= _CALM_S:
                self._step, self._stepped = self._step - 1, now
                self._calm_since = now  # the next step back waits as long
        return self._ladder[self._step]

    def _weight(self, now: float) -> float:
        """What is left of the weight of what was observed last."""
        return math.exp(-max(now - self._observed, 0.0) / _SMOOTHING_S)
