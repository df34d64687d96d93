"""Upper confidence bounds of the loss of a candidate against the most accurate level, for metrics other than accuracy.

A correlation or r2 of an ensemble is no mean over queries, so no bound of it is exact; that of an accuracy is in
`tidal.tabi.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from tidal.tabi.paired import CONFIDENCE
from tidal_builders.tabi.evaluate import Floats

Groups = npt.NDArray[np.int64]

_QUANTILE = float(ndtri(CONFIDENCE))
_RESAMPLES = 500
# Sets of texts that the jackknife leaves out, one at a time, and how many of them may have the worst text.
_SETS, _LIKELY_SETS = 200, 5
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
    """Return the upper confidence bound of any loss, by a bootstrap in which the worst text is drawn one extra time.

    Rare queries that are far off are fewer among the given ones than among new ones as often as they are more, and then
    the plain bootstrap is too low. The exact bound of a share (Clopper and Pearson, 1934) is about the quantile of a
    count that has one event more than was seen; so the text that raises the loss most is added before resampling. In
    simulations of correlations and r2 on 150 to 600 queries this covers the loss in 94 to 98 % of cases without
    outliers (92 to 96 % by the plain bootstrap), and in 75 to 90 % where 0.5 to 2 % of the answers are arbitrary (65 to
    85 %), which no bound can know.

    Where the queries hardly differ, the bound is the measured loss and 3 / n: queries of a kind that is not among n of
    them are at most that share of all.

    Args:
        loss: Returns the loss for the weights of the queries, [n].
        groups: Number of each query's text, from 0, [n]: all queries of a text are resampled together.
    """
    generator, count = np.random.default_rng(0), int(groups.max()) + 1
    shares = np.full(count, 1 / (count + 1))
    shares[_worst(loss, groups)] *= 2
    losses = [loss(generator.multinomial(count + 1, shares)[groups].astype(np.float64)) for _ in range(_RESAMPLES)]
    return max(float(np.quantile(losses, CONFIDENCE)), loss(np.ones(len(groups))) + _UNSEEN / count)


def _worst(loss: Callable[[Floats], float], groups: Groups) -> int:
    """Return the text that raises the loss most if it is drawn one extra time, of the sets that raise it most."""
    influences, members = _influences(loss, groups, _SETS), _members(groups, _SETS)
    likely = np.isin(members, np.argsort(influences)[-_LIKELY_SETS:])
    texts = np.unique(groups[likely[groups]])
    return int(max(texts, key=lambda text: loss(1.0 + (groups == text))))


def _influences(loss: Callable[[Floats], float], groups: Groups, sets: int) -> Floats:
    """Return by how much each set of the texts raises the loss; the sum of the squares is the loss's variance."""
    members = _members(groups, sets)
    if len(members) == 1:
        return np.zeros(1)
    without = np.array([loss((members[groups] != each).astype(np.float64)) for each in range(int(members.max()) + 1)])
    scale = math.sqrt((len(without) - 1) / len(without))
    return np.asarray(scale * (without.mean() - without), np.float64)


def _members(groups: Groups, sets: int) -> Groups:
    """Return the set of each text, [texts]: random ones of equal size."""
    count = int(groups.max()) + 1
    return np.random.default_rng(0).permutation(count) % min(sets, count)
