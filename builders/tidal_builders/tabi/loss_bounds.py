"""Upper confidence bounds of the loss of a candidate against the most accurate level, for metrics other than accuracy.

A correlation or r2 of an ensemble is no mean over queries, so no bound of it is exact; that of an accuracy is in
`tidal.tabi.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from tidal.tabi.paired import CONFIDENCE
from tidal_builders.tabi.evaluate import Floats

Groups = npt.NDArray[np.int64]

_QUANTILE = float(ndtri(CONFIDENCE))
_RESAMPLES = 1000
# Sets of queries that the jackknife leaves out, one at a time: the skewness of fewer is too uncertain.
_SETS = 200
_FEW_SETS = 20
# Queries of a kind that is not among n of them are less than this / n of all, with the same confidence.
_UNSEEN = -math.log(1 - CONFIDENCE)


def approximate_loss_bound(loss: Callable[[Floats], float], groups: Groups) -> float:
    """Return the upper confidence bound of any loss by its standard error, from few values of it.

    The standard error is that of the jackknife, which leaves out one of 20 sets of the queries at a time.

    Args:
        loss: Returns the loss for the weights of the queries, [n].
        groups: Number of each query's text, from 0, [n]: queries with the same one are no independent observations.
    """
    errors = _influences(loss, groups, _FEW_SETS)
    return loss(np.ones(len(groups))) + _QUANTILE * math.sqrt(float(errors @ errors))


def resampled_loss_bound(loss: Callable[[Floats], float], groups: Groups) -> float:
    """Return the upper confidence bound of any loss, by the bootstrap that is corrected for bias and skewness (BCa).

    Efron, Better Bootstrap Confidence Intervals (JASA 82, 1987): second-order accurate, so it covers the loss with a
    probability that differs from the confidence by the order of 1 / n. A negative skewness is not corrected, which
    would only lower the bound. No resampled query is of a kind that is not among the given ones: where these differ
    little, the bound is the measured loss and 3 / n.

    Args:
        loss: Returns the loss for the weights of the queries, [n].
        groups: Number of each query's text, from 0, [n]: all queries of a text are resampled together.
    """
    generator, count = np.random.default_rng(0), int(groups.max()) + 1
    even = np.full(count, 1 / count)
    measured = loss(np.ones(len(groups)))
    losses = np.array([loss(generator.multinomial(count, even)[groups].astype(np.float64)) for _ in range(_RESAMPLES)])
    below = ((losses < measured).sum() + (losses == measured).sum() / 2) / _RESAMPLES
    bias = float(ndtri(np.clip(below, 1 / _RESAMPLES, 1 - 1 / _RESAMPLES)))
    influences = _influences(loss, groups, _SETS)
    spread = float(influences @ influences) ** 1.5
    skewness = max(float((influences**3).sum()) / (6 * spread), 0.0) if spread > 0 else 0.0
    shifted = bias + _QUANTILE
    bound = float(np.quantile(losses, ndtr(bias + shifted / (1 - skewness * shifted))))
    return max(bound, measured + _UNSEEN / count)


def _influences(loss: Callable[[Floats], float], groups: Groups, sets: int) -> Floats:
    """Return by how much each set of the queries raises the loss, in sum; their squares sum to its variance."""
    count = int(groups.max()) + 1
    if count == 1:
        return np.zeros(1)
    member = (np.random.default_rng(0).permutation(count) % min(sets, count))[groups]
    without = np.array([loss((member != each).astype(np.float64)) for each in range(int(member.max()) + 1)])
    scale = math.sqrt((len(without) - 1) / len(without))
    return np.asarray(scale * (without.mean() - without), np.float64)
