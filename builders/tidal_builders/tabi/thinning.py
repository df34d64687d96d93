"""Which of many configurations are worth keeping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidal.tabi.manifest import Expected
from tidal.tabi.selection import escalation_rate
from tidal_builders.tabi.evaluate import Weights
from tidal_builders.tabi.weights import Weighting

# Points of score that nobody tells apart: a target in whole steps loses nothing by what is dropped within one.
SCORE_STEP = 0.001


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate before the report part is looked at; fields as in Candidate."""

    levels: tuple[int, ...]
    pruning: float | None
    cutoff: float | None
    slope: float | None
    weighting: Weighting | None
    weights: tuple[Weights, ...]
    selection: Expected


def thin(found: Iterable[Found]) -> list[Found]:
    """For each combination and weighting, the fronts of score against mean latency and against escalations.

    Within a step of score only the cheapest stays, and the best of all.
    """
    groups: dict[tuple[object, ...], list[Found]] = {}
    for each in found:
        groups.setdefault((each.levels, each.weighting), []).append(each)
    kept: list[Found] = []
    for group in groups.values():
        fronts = _front(group, _mean_latency) + _front(group, _escalations)
        kept += [each for number, each in enumerate(fronts) if each not in fronts[:number]]
    return kept


def _mean_latency(found: Found) -> tuple[float, float]:
    return found.selection.latency.mean, -found.selection.score


def _escalations(found: Found) -> tuple[float, ...]:
    return escalation_rate(found.selection), *_mean_latency(found)


def _front(group: Sequence[Found], cost: Callable[[Found], tuple[float, ...]]) -> list[Found]:
    """From the best score down, those that cost less than all better ones."""
    best = min(group, key=lambda each: (-each.selection.score, cost(each)))
    cheapest: dict[int, Found] = {}
    for each in group:
        # A score that is a whole number of steps is one in spite of rounding.
        step = math.floor(each.selection.score / SCORE_STEP + 1e-6)
        if step not in cheapest or cost(each) < cost(cheapest[step]):
            cheapest[step] = each
    front = [best]
    for _, each in sorted(cheapest.items(), reverse=True):
        if cost(each)[0] < cost(front[-1])[0]:
            front.append(each)
    return front
