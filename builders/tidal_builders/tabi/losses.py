"""Compares configurations with the most accurate level alone, in an order that the comparison cannot influence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidal.tabi.manifest import ExpectedLoss
from tidal_builders.tabi.combinations import CombinationEvaluator
from tidal_builders.tabi.data import CALIBRATION, SELECTION
from tidal_builders.tabi.evaluate import Floats, LevelChain
from tidal_builders.tabi.loss_bounds import accuracy_loss_bound, approximate_loss_bound, resampled_loss_bound
from tidal_builders.tabi.pareto import Configuration


class _Loss(NamedTuple):
    """Loss of a configuration on a part of the data, and its upper confidence bound."""

    measured: float
    upper: float


def compare_losses(
    evaluator: CombinationEvaluator, configurations: Sequence[Configuration]
) -> dict[Configuration, ExpectedLoss]:
    """Return the losses on the selection part of the configurations that are faster than the most accurate level.

    Their order is that of the upper bound of the loss on the calibration part, and those are left out that a faster one
    comes before in it: neither depends on the labels of the selection part.

    Args:
        evaluator: Evaluator of the configurations.
        configurations: Configurations, with all single levels.
    """
    alone = max((each for each in configurations if len(each.levels) == 1), key=lambda each: each.levels)
    faster = [each for each in configurations if each.selection.latency.mean < alone.selection.latency.mean]
    # Any order is correct: that of the calibration part may be approximate.
    bounds = {each: _loss(evaluator, each, alone, CALIBRATION, approximate_loss_bound).upper for each in faster}
    order: list[Configuration] = []
    fastest = alone.selection.latency.mean
    for each in sorted(faster, key=lambda each: (bounds[each], each.selection.latency.mean)):
        if each.selection.latency.mean < fastest:
            fastest = each.selection.latency.mean
            order.append(each)
    queries = len(evaluator.rows(SELECTION))
    losses = [_loss(evaluator, each, alone, SELECTION, resampled_loss_bound) for each in order]
    return {
        each: ExpectedLoss(measured=loss.measured, upper=loss.upper, place=place, queries=queries)
        for place, (each, loss) in enumerate(zip(order, losses, strict=True))
    }


def _loss(
    evaluator: CombinationEvaluator,
    configuration: Configuration,
    alone: Configuration,
    part: int,
    bound: Callable[[Callable[[Floats], float], int], float],
) -> _Loss:
    """Return the loss on a part of the data; `bound` is for metrics other than accuracy."""
    (one, one_reach), (other, other_reach) = (_chain(evaluator, each, part) for each in (alone, configuration))
    queries = len(one.truth)
    if one.metric == "accuracy":
        before = one.right(one_reach, alone.weights)
        after = other.right(other_reach, configuration.weights)
        lost, gained = float(before @ (1 - after)), float((1 - before) @ after)
        return _Loss((lost - gained) / queries, accuracy_loss_bound(lost, gained, queries))

    def loss(counts: Floats | None = None) -> float:
        before = one.score(one_reach, alone.weights, counts)
        return before - other.score(other_reach, configuration.weights, counts)

    return _Loss(loss(), bound(loss, queries))


def _chain(evaluator: CombinationEvaluator, configuration: Configuration, part: int) -> tuple[LevelChain, Floats]:
    chain = evaluator.chain_of(configuration.levels, configuration.pruning, part)
    return chain, chain.reach(configuration.cutoff, configuration.slope)
