"""Figures from measured values: percentiles, ratios, paired confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference of two shares, and the bounds that hold 95 % of the bootstrap's."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2%} ({self.low:+.2%} to {self.high:+.2%})"


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float], *, seed: int = 0) -> Interval:
    """Mean of `ours - theirs` over the queries that both have; queries are resampled, pairs stay together.

    Args:
        ours: share of right answers by query.
        theirs: likewise.
        seed: of the resampling.
    """
    queries = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[query] - theirs[query] for query in queries])
    return resampled(differences, seed=seed)


def resampled(differences: Floats, *, seed: int = 0) -> Interval:
    """Mean with its 95 % bootstrap interval."""
    rng = np.random.default_rng(seed)
    # Most differences are 0 or 1 and alike: draw how often each value comes instead of every single one.
    values, counts = np.unique(differences, return_counts=True)
    drawn = rng.multinomial(len(differences), counts / len(differences), _RESAMPLES)
    means = drawn @ values / len(differences)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(differences.mean()), float(low), float(high))


def right_by_query(rounds: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> dict[int, float]:
    """Share of right answers by query, over rounds of (queries, whether each was right)."""
    right: dict[int, list[bool]] = {}
    for queries, found in rounds:
        for query, each in zip(queries, found, strict=True):
            right.setdefault(query, []).append(each)
    return {query: float(np.mean(found)) for query, found in right.items()}
