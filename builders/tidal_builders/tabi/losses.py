"""Compares configurations with the most accurate level alone, in an order that the comparison cannot influence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tidal.tabi.manifest import ExpectedLoss
from tidal.tabi.paired import upper_loss
from tidal_builders.tabi.combinations import CombinationEvaluator
from tidal_builders.tabi.data import CALIBRATION, SELECTION, Indices, LabelledData, text_numbers
from tidal_builders.tabi.early_routing import EarlyRouting
from tidal_builders.tabi.evaluate import Floats, LevelChain
from tidal_builders.tabi.loss_bounds import approximate_loss_bound, resampled_loss_bound
from tidal_builders.tabi.pareto import Configuration


class _Loss(NamedTuple):
    """Loss of a configuration on a part of the data, with its upper confidence bound; see `ExpectedLoss`."""

    measured: float
    upper: float
    discordant: float | None


def compare_losses(
    evaluator: CombinationEvaluator,
    data: LabelledData,
    configurations: Sequence[Configuration],
    early: EarlyRouting | None = None,
) -> dict[Configuration, ExpectedLoss]:
    """Return the losses on the selection part of the configurations that are faster than the most accurate level.

    Their order is that of the upper bound of the loss on the calibration part, and those are left out that a faster one
    comes before in it. Neither depends on the labels of the selection part, which makes it an order of tests that needs
    no correction for their number (fixed-sequence testing; Angelopoulos et al., Learn then Test, 2021; see `proven`).
    Only which level is the most accurate comes from both parts: being so by chance raises the loss that is measured.

    Args:
        evaluator: Evaluator of the configurations.
        data: Queries that it evaluates on.
        configurations: Configurations, with all single levels.
        early: Evaluates those with early routing; None if there are none.
    """
    alone = max((each for each in configurations if len(each.levels) == 1), key=lambda each: each.levels)
    faster = [each for each in configurations if each.selection.latency.mean < alone.selection.latency.mean]
    groups = {part: text_numbers(data.texts, evaluator.rows(part)) for part in (CALIBRATION, SELECTION)}
    # Any order is correct: that of the calibration part may be approximate.
    known = groups[CALIBRATION]
    bounds = {
        each: _loss(evaluator, early, each, alone, CALIBRATION, known, approximate_loss_bound).upper for each in faster
    }
    order: list[Configuration] = []
    fastest = alone.selection.latency.mean
    for each in sorted(faster, key=lambda each: (bounds[each], each.selection.latency.mean)):
        if each.selection.latency.mean < fastest:
            fastest = each.selection.latency.mean
            order.append(each)
    new = groups[SELECTION]
    losses = [_loss(evaluator, early, each, alone, SELECTION, new, resampled_loss_bound) for each in order]
    return {
        each: ExpectedLoss(
            measured=loss.measured,
            upper=loss.upper,
            place=place,
            queries=int(independent_queries(new)),
            discordant=loss.discordant,
        )
        for place, (each, loss) in enumerate(zip(order, losses, strict=True))
    }


def independent_queries(groups: Indices) -> float:
    """Effective sample size (Kish) of queries that share texts.

    All queries of a text are in one part of the data, so its share there is as uncertain as that of one query.

    Args:
        groups: Number of each query's text, from 0, [n].

    Returns:
        n² / Σ m² for texts that come m times each; n if all differ.
    """
    counts = np.bincount(groups).astype(np.float64)
    return float(counts.sum() ** 2 / (counts @ counts))


def _loss(
    evaluator: CombinationEvaluator,
    early: EarlyRouting | None,
    configuration: Configuration,
    alone: Configuration,
    part: int,
    groups: Indices,
    bound: Callable[[Callable[[Floats], float], Indices], float],
) -> _Loss:
    """Return the loss on a part of the data; `bound` is for metrics other than accuracy."""
    (one, one_reach), (other, other_reach) = (_chain(evaluator, each, part) for each in (alone, configuration))
    if one.metric == "accuracy":
        before = one.right(one_reach, alone.weights)
        after = other.right(other_reach, configuration.weights) if early is None else early.right(configuration, part)
        lost, gained = float(before @ (1 - after)) / len(groups), float((1 - before) @ after) / len(groups)
        count = independent_queries(groups)
        return _Loss(lost - gained, upper_loss(lost * count, gained * count, count), lost + gained)

    def loss(counts: Floats | None = None) -> float:
        before = one.score(one_reach, alone.weights, counts)
        return before - other.score(other_reach, configuration.weights, counts)

    return _Loss(loss(), bound(loss, groups), None)


def _chain(evaluator: CombinationEvaluator, configuration: Configuration, part: int) -> tuple[LevelChain, Floats]:
    chain = evaluator.chain_of(configuration.levels, configuration.pruning, part)
    return chain, chain.reach(configuration.cutoff, configuration.slope)
