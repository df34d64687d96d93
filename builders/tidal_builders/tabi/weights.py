"""The ensemble's weights: by accuracy as in the paper, and tuned (Tabi Eq. 6, §4.3)."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from tidal_builders.tabi.evaluate import Floats, LevelChain, Weights, answering

# Weights are whole hundredths: a finer grid changes no answer that the data could distinguish.
_PARTS = 100
# Tuning tries all weights that are multiples of 1 / divisions, by the number of levels.
_DIVISIONS = {2: 20, 3: 10}
_FEW_DIVISIONS = 5

Weighting = Literal["accuracy", "tuned"]


def by_accuracy(chain: LevelChain, reach: Floats) -> tuple[Weights, ...]:
    """Return weights proportional to each level's score on the queries that are re-routed to it (Tabi §4.3).

    Args:
        chain: Levels on the queries that determine the weights.
        reach: Probability that each query runs each level, [levels, n].

    Returns:
        One entry for each number of levels that have run. A level whose score is not above 0 has weight 0; if none
        is, all have the same weight.
    """
    return tuple(
        _hundredths([max(chain.alone(level, reach[last]), 0.0) for level in range(last + 1)])
        for last in range(chain.depth)
    )


class Tuner:
    """Searches the weights that answer the queries of a chain best.

    A classification maximises accuracy, a regression minimises the squared error. Wide ranges of weights are equally
    good; among these the ones nearest to given weights are chosen.

    Args:
        chain: Levels on the queries to tune with.
    """

    def __init__(self, chain: LevelChain) -> None:
        self._tried = [_grid(levels) for levels in range(1, chain.depth + 1)]
        # By number of levels: loss of each weighting on each query, [weightings, n].
        self._losses = [np.stack([_loss(chain, each) for each in tried]) for tried in self._tried]

    def tune(self, reach: Floats, near: tuple[Weights, ...]) -> tuple[Weights, ...]:
        """Return, for each number of levels, the best weights on the queries which that many levels answer.

        Args:
            reach: Probability that each query runs each level, [levels, n].
            near: Weights that break ties: the nearest is chosen.
        """
        chosen = []
        for tried, losses, answered, wanted in zip(self._tried, self._losses, answering(reach), near, strict=True):
            total = losses @ answered
            equal = np.flatnonzero(total <= total.min() + 1e-9 * answered.sum())
            distance = np.abs(np.array([tried[i] for i in equal]) - wanted).sum(axis=1)
            chosen.append(tried[equal[distance.argmin()]])
        return tuple(chosen)


def _loss(chain: LevelChain, weights: Weights) -> Floats:
    answers = chain.answers(weights)
    if chain.metric == "accuracy":
        return np.asarray(answers != chain.truth, np.float64)
    return np.asarray((answers.astype(np.float64) - chain.truth.astype(np.float64)) ** 2, np.float64)


def _grid(levels: int) -> list[Weights]:
    """Return all weights of a number of levels that are multiples of a step and sum to 1."""
    divisions = _DIVISIONS.get(levels, _FEW_DIVISIONS)
    bars = itertools.combinations(range(divisions + levels - 1), levels - 1)
    cuts = [(-1, *each, divisions + levels - 1) for each in bars]
    return [_hundredths([b - a - 1 for a, b in itertools.pairwise(each)]) for each in cuts]


def _hundredths(shares: list[int] | list[float]) -> Weights:
    """Return shares as whole hundredths of their sum; equal ones if the sum is 0."""
    total = sum(shares)
    parts = np.array(shares) / total if total > 0 else np.full(len(shares), 1 / len(shares))
    until = np.rint(np.cumsum(parts) * _PARTS)
    return tuple((np.diff(until, prepend=0) / _PARTS).tolist())
