"""Upper confidence bounds of the loss of a candidate against the most accurate level, on the same queries."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from tidal_builders.tabi.evaluate import Floats

#: Probability that the bound of one candidate is not below its loss on new queries.
CONFIDENCE = 0.95
# Quantile of the normal distribution for it.
_QUANTILE = 1.6448536269514722
_RESAMPLES = 500
_GROUPS = 20


def accuracy_loss_bound(lost: float, gained: float, queries: int) -> float:
    """Return the upper confidence bound of a loss of accuracy, by the score interval of paired proportions.

    The interval is that of Tango (Statistics in Medicine, 1998), one-sided. It is above 0 also where no query differs.

    Args:
        lost: Expected number of queries that only the most accurate level answers right.
        gained: Expected number of queries that only the candidate answers right.
        queries: Number of queries, at least 1.
    """

    def excess(loss: float) -> float:
        """How much the observed difference is below `loss`, in standard errors, beyond the quantile."""
        linear = (2 * queries - lost + gained) * loss - lost - gained
        constant = -gained * loss * (1 - loss)
        share = (math.sqrt(linear**2 - 8 * queries * constant) - linear) / (4 * queries)
        variance = queries * (2 * share + loss * (1 - loss))
        below = queries * loss - (lost - gained)
        return below / math.sqrt(variance) - _QUANTILE if variance > 0 else -_QUANTILE

    measured = (lost - gained) / queries
    nearly = 1 - 1e-9
    if measured >= nearly or excess(nearly) <= 0:
        return 1.0
    return float(brentq(excess, measured, nearly, xtol=1e-9))


def approximate_loss_bound(loss: Callable[[Floats], float], queries: int) -> float:
    """Return the upper confidence bound of any loss by its standard error, from few values of it.

    The standard error is that of the jackknife, which leaves out one of 20 groups of the queries at a time.

    Args:
        loss: Returns the loss for the weights of the queries, [queries].
        queries: Number of queries, at least 2.
    """
    groups = np.array_split(np.random.default_rng(0).permutation(queries), min(_GROUPS, queries))
    losses = []
    for group in groups:
        weights = np.ones(queries)
        weights[group] = 0
        losses.append(loss(weights))
    error = math.sqrt((len(groups) - 1) * float(np.var(losses)))
    return loss(np.ones(queries)) + _QUANTILE * error


def resampled_loss_bound(loss: Callable[[Floats], float], queries: int) -> float:
    """Return the upper confidence bound of any loss, by bootstrap: its quantile over resampled queries.

    Args:
        loss: Returns the loss for the weights of the queries, [queries].
        queries: Number of queries, at least 1.
    """
    generator = np.random.default_rng(0)
    even = np.full(queries, 1 / queries)
    losses = [loss(generator.multinomial(queries, even).astype(np.float64)) for _ in range(_RESAMPLES)]
    return float(np.quantile(losses, CONFIDENCE))
