"""What a second of the engine is worth to queries that are still to come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tidal.otas.policies.costs import FloatArray


def steps(seconds: Sequence[float], earned: Sequence[float]) -> list[tuple[float, float]]:
    """The steps from not running a query to the γ at which it earns most, each worth less a second than the last.

    A step is how many seconds more, and what they earn more. What lies below the line between two others, by seconds
    and earnings, is never worth its time.
    """
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for takes, earns in sorted(zip(seconds, earned, strict=True), key=lambda choice: (choice[0], -choice[1])):
        if earns <= hull[-1][1]:
            continue
        while len(hull) > 1:
            (s0, e0), (s1, e1) = hull[-2:]
            if (e1 - e0) * (takes - s1) > (earns - e1) * (s1 - s0):
                break
            hull.pop()
        hull.append((takes, earns))
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(hull)]


class PriceOfTime:
    """The least price at which queries like the last ones, each at the γ that is worth its time, keep the engine free.

    It is the dual of a fluid problem: choose each query's γ, or not to run it, so that all earn as much as they can
    together in the seconds that there are. 0 where there is time enough for the best γ of all.

    Args:
        sample_s: [gammas] seconds of a query in a good batch.
        remembered: how many queries stand for those to come.
        refresh: queries after which the prices are made anew.
    """

    def __init__(self, sample_s: FloatArray, remembered: int = 128, refresh: int = 16) -> None:
        self._sample_s: list[float] = sample_s.tolist()
        self._seconds = np.zeros((remembered, len(sample_s)))  # of steps, 0 where a query has fewer
        self._earned = np.zeros_like(self._seconds)
        self._refresh = refresh
        self._queries = 0
        self._made_at = 0
        self._prices = np.zeros(0)  # descending
        self._until = np.zeros(0)  # seconds a query that are used at that price or above

    def add(self, earned: FloatArray) -> None:
        """A query has arrived that earns so much by γ."""
        row = self._queries % len(self._seconds)
        found = steps(self._sample_s, earned.tolist())
        self._seconds[row] = self._earned[row] = 0.0
        for place, (seconds, more) in enumerate(found):
            self._seconds[row, place], self._earned[row, place] = seconds, more
        self._queries += 1

    def at(self, seconds: float) -> float:
        """The price, in utility a second, where every query can have so many seconds on the mean."""
        if self._queries - self._made_at >= min(self._refresh, self._queries):
            self._make()
        place = int(np.searchsorted(self._until, seconds, side="right"))
        return float(self._prices[place]) if place < len(self._prices) else 0.0

    def _make(self) -> None:
        self._made_at = self._queries
        used = self._seconds > 0
        seconds = self._seconds[used]
        worth = self._earned[used] / seconds
        order = np.argsort(-worth, kind="stable")
        self._prices = worth[order]
        self._until = np.cumsum(seconds[order]) / max(min(self._queries, len(used)), 1)
