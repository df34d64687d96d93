"""The ensemble's weights: as the paper sets them, and tuned (Tabi Eq. 6, §4.3)."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from tidal_builders.tabi.evaluate import Chain, Weights, answering
from tidal_builders.tabi.metrics import Floats

# Weights are whole hundredths: a finer one moves no answer that the data could tell apart.
_PARTS = 100
# Tuning tries all weights that are multiples of one over this, by the number of levels.
_DIVISIONS = {2: 20, 3: 10}
_FEW_DIVISIONS = 5

Weighting = Literal["accuracy", "tuned"]


def by_accuracy(chain: Chain, reach: Floats) -> tuple[Weights, ...]:
    """Weights in proportion to each level's score on the queries that are re-routed so far (the paper's rule).

    Args:
        chain: the levels on the queries to weigh them by.
        reach: probability that each query runs each level, [levels, n].

    Returns:
        An entry for each number of levels that have run; a level whose score is not above 0 has no weight, and all
        have the same where none is.
    """
    return tuple(
        _hundredths([max(chain.alone(level, reach[last]), 0.0) for level in range(last + 1)])
        for last in range(chain.depth)
    )


class Tuner:
    """Weights that answer the queries of a chain best.

    A classification maximises accuracy, a regression minimises the squared error. Equally good weights lie side by
    side in wide ranges; of these the nearest to given ones is taken.

    Args:
        chain: the levels on the queries to tune by.
    """

    def __init__(self, chain: Chain) -> None:
        self._tried = [_grid(levels) for levels in range(1, chain.depth + 1)]
        # By number of levels: how wrong each weighting is on each query, [weightings, n].
        self._losses = [np.stack([_loss(chain, each) for each in tried]) for tried in self._tried]

    def tune(self, reach: Floats, near: tuple[Weights, ...]) -> tuple[Weights, ...]:
        """An entry for each number of levels, each the best on the queries that so many levels answer.

        Args:
            reach: probability that each query runs each level, [levels, n].
            near: the weights that decide among equals.
        """
        chosen = []
        for tried, losses, answered, wanted in zip(self._tried, self._losses, answering(reach), near, strict=True):
            total = losses @ answered
            equal = np.flatnonzero(total <= total.min() + 1e-9 * answered.sum())
            distance = np.abs(np.array([tried[i] for i in equal]) - wanted).sum(axis=1)
            chosen.append(tried[equal[distance.argmin()]])
        return tuple(chosen)


def _loss(chain: Chain, weights: Weights) -> Floats:
    answers = chain.answers(weights)
    if chain.metric == "accuracy":
        return np.asarray(answers != chain.truth, np.float64)
    return np.asarray((answers.astype(np.float64) - chain.truth.astype(np.float64)) ** 2, np.float64)


def _grid(levels: int) -> list[Weights]:
    """All weights of so many levels that are multiples of a step and sum to 1."""
    divisions = _DIVISIONS.get(levels, _FEW_DIVISIONS)
    bars = itertools.combinations(range(divisions + levels - 1), levels - 1)
    cuts = [(-1, *each, divisions + levels - 1) for each in bars]
    return [_hundredths([b - a - 1 for a, b in itertools.pairwise(each)]) for each in cuts]


def _hundredths(shares: list[int] | list[float]) -> Weights:
    """The shares as whole hundredths of their sum; equal ones where the sum is 0."""
    total = sum(shares)
    parts = np.array(shares) / total if total > 0 else np.full(len(shares), 1 / len(shares))
    until = np.rint(np.cumsum(parts) * _PARTS)
    return tuple((np.diff(until, prepend=0) / _PARTS).tolist())
