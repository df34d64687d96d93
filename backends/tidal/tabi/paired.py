"""Score test of the loss between two shares of right answers that are measured on the same queries.

The test is that of Tango (Equivalence test and confidence interval for the difference in proportions for the
paired-sample design, Statistics in Medicine 17, 1998), one-sided, with a continuity correction of half a query. Its
bound covers the loss with a probability of at least 95 %, by the multinomial distribution of the counts for 200 to
5,000 queries and any few that differ; without the correction the least is 94.0 %.

It depends on the queries that only the reference answers right (`lost`) and those that only the other one does
(`gained`); those that both answer right, or both wrong, tell nothing.
"""

from __future__ import annotations

import math

#: Probability that the bound of one loss is not below the loss on new queries.
CONFIDENCE = 0.95
# Its quantile of the normal distribution.
_QUANTILE = 1.6448536269514722
# In queries: the difference of the counts moves in steps of 1.
_CORRECTION = 0.5
# Halvings of an interval of length 2 at most: the bound is exact to 1e-12.
_HALVINGS = 41


def upper_loss(lost: float, gained: float, queries: float) -> float:
    """Return the upper confidence bound of a loss, in shares of the queries, at most 1.

    It is above 0 also where the two answer all queries alike: 3.6 / queries. Counts may be expectations over random
    answers, whose spread is less than that of counts.

    Args:
        lost: Number of queries that only the reference answers right.
        gained: Number of queries that only the other one answers right.
        queries: Number of independent queries, at least 1.
    """
    first, second = lost / queries, gained / queries
    low, high = first - second, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _rejected(first, second, queries, middle):
            high = middle
        else:
            low = middle
    return high


def queries_needed(lost: float, gained: float, loss: float) -> float:
    """Return how many queries would bring the bound down to a loss, if the shares stay the same.

    Args:
        lost: Share of the queries that only the reference answers right.
        gained: Share of the queries that only the other one answers right.
        loss: Loss to be shown, in shares of the queries, below 1.

    Returns:
        The number; infinity if the measured loss is not below `loss`.
    """
    margin = loss - (lost - gained)
    if margin <= 0:
        return math.inf
    # The root of margin·n = quantile·√(variance·n) + correction in √n.
    half = _QUANTILE * math.sqrt(_variance(lost, gained, loss)) / 2
    return ((half + math.sqrt(half**2 + _CORRECTION * margin)) / margin) ** 2


def _rejected(lost: float, gained: float, queries: float, loss: float) -> bool:
    """Return whether the measured loss is so far below `loss` that this is not the true one."""
    below = queries * (loss - lost + gained) - _CORRECTION
    return below >= _QUANTILE * math.sqrt(queries * _variance(lost, gained, loss))


def _variance(lost: float, gained: float, loss: float) -> float:
    """Return the variance of one query's loss, with the shares that are most likely if `loss` is the true one."""
    linear = (2 - lost + gained) * loss - lost - gained
    root = math.sqrt(max(linear**2 + 8 * gained * loss * (1 - loss), 0.0))
    return max((root - linear) / 2 + loss * (1 - loss), 0.0)
