"""What a second of the engine is worth to queries that are still to come."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np

from tidal.otas.policies.costs import FloatArray

#: A query's choices as steps of more seconds: how many, and what it earns more by each of them.
Steps = tuple[tuple[float, float], ...]


def steps(seconds: Sequence[float], earned: Sequence[float]) -> Steps:
    """The steps from not running a query to the γ at which it earns most, each worth less a second than the last.

    What lies below the line between two others, by seconds and earnings, is never worth its time.
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
    return tuple((b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(hull))


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
        self._steps: deque[Steps] = deque(maxlen=remembered)
        self._refresh = refresh
        self._new = 0
        self._prices = np.zeros(0)  # descending
        self._until = np.zeros(0)  # seconds a query that are used at that price or above

    def add(self, earned: FloatArray) -> None:
        """A query has arrived that earns so much by γ."""
        self._steps.append(steps(self._sample_s, earned.tolist()))
        self._new += 1

    def at(self, seconds: float) -> float:
        """The price, in utility a second, where every query can have so many seconds on the mean."""
        if self._new >= self._refresh or not len(self._prices):
            self._make()
        place = int(np.searchsorted(self._until, seconds, side="right"))
        return float(self._prices[place]) if place < len(self._prices) else 0.0

    def _make(self) -> None:
        self._new = 0
        all_steps = np.array([step for each in self._steps for step in each]).reshape(-1, 2)
        worth = all_steps[:, 1] / all_steps[:, 0]
        order = np.argsort(-worth, kind="stable")
        self._prices = worth[order]
        self._until = np.cumsum(all_steps[order, 0]) / max(len(self._steps), 1)
