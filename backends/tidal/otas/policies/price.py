"""Price of a second of the engine: the utility that future queries would earn in it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tidal.otas.policies.costs import FloatArray


def steps(seconds: Sequence[float], earned: Sequence[float]) -> list[tuple[float, float]]:
    """Return the upper convex hull of a query's choices, from not running it to the γ with the highest earnings.

    Args:
        seconds: Seconds of the query by γ.
        earned: Expected utility of the query by γ.

    Returns:
        Additional seconds and additional earnings of each step, with decreasing earnings per second. A γ below the line
        between two others is left out, since it is never the best at any price.
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
    """Lowest price per second at which queries like the recent ones do not need more than the available time.

    It is the dual of a fluid problem: choose each query's γ, or not to run it, to maximise the total earnings in the
    available seconds. The price is 0 if there is enough time for the best γ of all queries.

    Args:
        sample_s: Seconds per query in a good batch by γ, of shape [gammas].
        remembered: Number of recent queries that represent future ones.
        refresh: Number of queries after which prices are computed again.
    """

    def __init__(self, sample_s: FloatArray, remembered: int = 128, refresh: int = 16) -> None:
        self._sample_s: list[float] = sample_s.tolist()
        self._seconds = np.zeros((remembered, len(sample_s)))  # by query and step, 0 for unused steps
        self._earned = np.zeros_like(self._seconds)
        self._refresh = refresh
        self._queries = 0
        self._made_at = 0
        self._prices = np.zeros(0)  # descending
        self._until = np.zeros(0)  # seconds per query that are used at that price or above

    def add(self, earned: FloatArray) -> None:
        """Add a query that has arrived, with its expected utility by γ, of shape [gammas]."""
        row = self._queries % len(self._seconds)
        found = steps(self._sample_s, earned.tolist())
        self._seconds[row] = self._earned[row] = 0.0
        for gamma_index, (seconds, more) in enumerate(found):
            self._seconds[row, gamma_index], self._earned[row, gamma_index] = seconds, more
        self._queries += 1

    def at(self, seconds: float) -> float:
        """Return the price in utility per second, for a mean number of seconds available per query."""
        if self._queries - self._made_at >= min(self._refresh, self._queries):
            self._make()
        gamma_index = int(np.searchsorted(self._until, seconds, side="right"))
        return float(self._prices[gamma_index]) if gamma_index < len(self._prices) else 0.0

    def _make(self) -> None:
        self._made_at = self._queries
        used = self._seconds > 0
        seconds = self._seconds[used]
        density = self._earned[used] / seconds
        order = np.argsort(-density, kind="stable")
        self._prices = density[order]
        self._until = np.cumsum(seconds[order]) / max(min(self._queries, len(used)), 1)
