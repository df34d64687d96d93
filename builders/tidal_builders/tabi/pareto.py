"""Pareto fronts: which of many configurations are kept as candidates, and which candidates no other one beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidal.tabi.manifest import Candidate, Expected
from tidal.tabi.selection import escalation_rate
from tidal_builders.tabi.evaluate import Weights
from tidal_builders.tabi.weights import Weighting

# Scores within one step count as equal: a target in whole steps loses nothing by what is dropped within one.
SCORE_STEP = 0.001


@dataclass(frozen=True, slots=True)
class Configuration:
    """A candidate before its evaluation on the report part; fields as in `Candidate`.

    Attributes:
        search_score: Score on the calibration part, which it is kept or left out by: the selection part must be new to
            those that are kept.
    """

    levels: tuple[int, ...]
    pruning: float | None
    cutoff: float | None
    slope: float | None
    weighting: Weighting | None
    weights: tuple[Weights, ...]
    selection: Expected
    search_score: float
    early: float | None = None


def thin_out(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return the fronts of score against mean latency and against escalations, per combination and weighting.

    Scores are those of the calibration part; latencies and escalations depend on no label, and are those of the
    selection part.

    Of the configurations within one score step only the cheapest is kept; the one with the highest score always is.

    Args:
        configurations: Configurations of any combinations and weightings.
    """
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for each in configurations:
        groups.setdefault((each.levels, each.weighting), []).append(each)
    kept: list[Configuration] = []
    for group in groups.values():
        fronts = _front(group, _mean_latency) + _front(group, _escalations)
        kept += [each for number, each in enumerate(fronts) if each not in fronts[:number]]
    return kept


def pareto_front(candidates: Sequence[Candidate]) -> list[int]:
    """Return the indices of the candidates that no other beats on the selection part in score and mean latency.

    Args:
        candidates: Measured candidates.
    """
    by_latency = sorted(
        range(len(candidates)),
        key=lambda index: (candidates[index].selection.latency.mean, -candidates[index].selection.score),
    )
    best = float("-inf")
    front: list[int] = []
    for index in by_latency:
        if candidates[index].selection.score > best:
            best = candidates[index].selection.score
            front.append(index)
    return front


def _mean_latency(configuration: Configuration) -> tuple[float, float]:
    return configuration.selection.latency.mean, -configuration.search_score


def _escalations(configuration: Configuration) -> tuple[float, ...]:
    return escalation_rate(configuration.selection), *_mean_latency(configuration)


def _front(group: Sequence[Configuration], cost: Callable[[Configuration], tuple[float, ...]]) -> list[Configuration]:
    """Return, from the highest score down, the configurations that cost less than all with a higher score."""
    best = min(group, key=lambda each: (-each.search_score, cost(each)))
    cheapest: dict[int, Configuration] = {}
    for each in group:
        # Rounded, so that a score of a whole number of steps counts as that number.
        step = math.floor(each.search_score / SCORE_STEP + 1e-6)
        if step not in cheapest or cost(each) < cost(cheapest[step]):
            cheapest[step] = each
    front = [best]
    for _, each in sorted(cheapest.items(), reverse=True):
        if cost(each)[0] < cost(front[-1])[0]:
            front.append(each)
    return front
