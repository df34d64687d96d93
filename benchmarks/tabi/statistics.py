"""Statistics of measured values: paired differences with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class BootstrapInterval:
    """A difference of two shares, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2%} ({self.low:+.2%} to {self.high:+.2%})"


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float], *, seed: int = 0) -> BootstrapInterval:
    """Return the mean of `ours - theirs` over the common queries; queries are resampled as pairs.

    Args:
        ours: Share of correct answers by query.
        theirs: The same of the other system.
        seed: Seed of the resampling.
    """
    queries = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[query] - theirs[query] for query in queries])
    return resampled(differences, seed=seed)


def resampled(differences: Floats, *, seed: int = 0) -> BootstrapInterval:
    """Return the mean with its 95 % bootstrap interval.

    Args:
        differences: Differences, [n].
        seed: Seed of the resampling.
    """
    rng = np.random.default_rng(seed)
    # Most differences are equal: draw how often each value occurs instead of every single one.
    values, counts = np.unique(differences, return_counts=True)
    drawn = rng.multinomial(len(differences), counts / len(differences), _RESAMPLES)
    means = drawn @ values / len(differences)
    low, high = np.percentile(means, (2.5, 97.5))
    return BootstrapInterval(float(differences.mean()), float(low), float(high))


def right_by_query(rounds: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> dict[int, float]:
    """Return the share of correct answers by query.

    Args:
        rounds: Queries, and whether each answer was correct, by round.
    """
    right: dict[int, list[bool]] = {}
    for queries, found in rounds:
        for query, each in zip(queries, found, strict=True):
            right.setdefault(query, []).append(each)
    return {query: float(np.mean(found)) for query, found in right.items()}
