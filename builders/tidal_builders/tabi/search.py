"""Search over the configurations of a cascade (Tabi §5).

Temperatures, weights, and which cut-offs, slopes and pruning scales are kept come from the labels of the calibration
part; those of the selection part only choose among the candidates that are kept. The order of the levels comes from
both. The report part is used for the reported figures only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, Expected, Latency, Metric
from tidal.tabi.serving_overhead import ServingOverhead
from tidal_builders.tabi.calibration import CalibratedLevel
from tidal_builders.tabi.combinations import CombinationEvaluator
from tidal_builders.tabi.data import CALIBRATION, REPORT, SELECTION, CollectedLevel, LabelledData, Rerun
from tidal_builders.tabi.early_routing import EarlyRouting, LevelRouter
from tidal_builders.tabi.evaluate import LevelChain
from tidal_builders.tabi.losses import compare_losses
from tidal_builders.tabi.pareto import Configuration, thin_out
from tidal_builders.tabi.weights import Tuner, Weighting, by_accuracy
from tidal_builders.timing import Progress

CUTOFFS = tuple(round(0.95 - 0.05 * step, 2) for step in range(19))  # c
SLOPES = (5.0, 10.0, 20.0, 40.0)  # k
# α. The paper raises it until the accuracy suffers; for a level that pruning never harms that would not end.
SCALES = tuple(round(0.5 + 0.1 * step, 1) for step in range(11))
WEIGHTINGS: tuple[Weighting, ...] = ("accuracy", "tuned")
# Maximum p75 of a candidate, as a multiple of its slowest level's.
MAX_P75_RATIO = 1.5
# Maximum score that pruning may cost the last level.
MAX_PRUNING_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The figures of a level in the manifest.

    Attributes:
        index: Index in the sequence of levels that was searched.
        calibrated: Calibration and reliability of the level.
        score: Score of the level alone, on the report part.
        latency: Latency of its engine alone, on the report part.
    """

    index: int
    calibrated: CalibratedLevel
    score: float
    latency: Latency


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        levels: Levels, ascending by score; candidates identify levels by their index here.
        candidates: Kept candidates, by mean latency on the selection part.
        tried: Number of configurations of several levels that were evaluated.
        too_slow: Number of those that miss the rule on the p75 latency.
        routers: Early routers of the candidates that have early routing.
    """

    levels: tuple[LevelResult, ...]
    candidates: tuple[Candidate, ...]
    tried: int
    too_slow: int
    routers: tuple[LevelRouter, ...] = ()


def search(
    data: LabelledData,
    levels: Sequence[CollectedLevel],
    rerun: Rerun,
    *,
    metric: Metric,
    tolerance: float | None = None,
    serving: ServingOverhead | None = None,
    early_router: bool = False,
    progress: Progress = lambda _: None,
) -> SearchResult:
    """Calibrate the levels, evaluate all combinations of them, and keep the candidates on the Pareto fronts.

    All single levels are kept and, for each combination and weighting, the result of `thin_out`. Early routing is tried
    with the configurations of two levels that this keeps.

    Args:
        data: Labelled queries.
        levels: Levels with their outputs on all queries.
        rerun: Runs a level on pruned queries.
        metric: Metric of the answers; "accuracy" means a classification, all others a regression.
        tolerance: Distance from the truth within which a regression's value is right; None for a classification.
        serving: Time that serving adds to the engines; None leaves it out of all latencies.
        early_router: Whether to fit early routers, for a classification.
        progress: Receives the completed share, 0 to 1.

    Raises:
        InvalidArgument: A part of the data is empty, or the tolerance does not fit the metric.
    """
    _check(data, metric, tolerance)
    evaluator = CombinationEvaluator(data, levels, rerun, metric=metric, tolerance=tolerance, serving=serving)
    early = EarlyRouting(evaluator, data, levels) if early_router else None
    places = range(len(levels))
    singles = [evaluator.single(level) for level in places]
    combinations = [each for size in range(2, len(levels) + 1) for each in itertools.combinations(places, size)]
    kept, tried, too_slow = list(singles), 0, 0
    for done, combination in enumerate(combinations):
        alone = [singles[level].selection for level in combination]
        evaluated: list[Configuration] = []
        for scale, found in _configurations(
            evaluator, combination, least=float(np.mean([singles[level].search_score for level in combination]))
        ):
            evaluated += found
            progress(0.9 * (done + (scale + 1) / (len(SCALES) + 1)) / len(combinations))
        fast = [each for each in evaluated if fast_enough(each.selection, alone)]
        if early is not None and len(combination) == 2:
            variants = [variant for each in thin_out(fast) for variant in early.variants(each)]
            evaluated += variants
            fast += [each for each in variants if fast_enough(each.selection, alone)]
        tried, too_slow = tried + len(evaluated), too_slow + len(evaluated) - len(fast)
        kept += thin_out(fast)
    losses = compare_losses(evaluator, data, kept, early)
    groups: dict[tuple[tuple[int, ...], float | None], list[Configuration]] = {}
    for each in kept:
        groups.setdefault((each.levels, each.pruning), []).append(each)
    candidates: list[Candidate] = []
    for done, group in enumerate(groups.values()):
        for each, candidate in zip(group, evaluator.reported(group, losses), strict=True):
            if early is not None and each.early is not None:
                candidate = early.reported(each, candidate)
            candidates.append(candidate)
        progress(0.9 + 0.1 * (done + 1) / len(groups))
    candidates.sort(key=lambda each: each.selection.latency.mean)
    alone_reported = {each.levels[0]: each.reported.score for each in candidates if len(each.levels) == 1}
    results = (
        LevelResult(index, evaluator.calibrated[place], alone_reported[place], evaluator.engine_latency(place))
        for place, index in enumerate(evaluator.order)
    )
    routers = () if early is None else early.routers(candidates)
    return SearchResult(tuple(results), tuple(candidates), tried, too_slow, routers)


def _check(data: LabelledData, metric: Metric, tolerance: float | None) -> None:
    for part, name in ((CALIBRATION, "calibration"), (SELECTION, "selection"), (REPORT, "report")):
        if not (data.part == part).any():
            raise InvalidArgument(f"the {name} part of the data has 0 queries; each part needs at least 1")
    if (metric == "accuracy") != (tolerance is None):
        raise InvalidArgument(f"tolerance is {tolerance} for {metric}; a regression needs one, a classification none")


def fast_enough(expected: Expected, alone: Sequence[Expected]) -> bool:
    """Return whether a candidate's p75 is within 1.5 times that of its slowest level, which limits their number.

    Args:
        expected: Figures of the candidate.
        alone: Figures of its levels, each alone.
    """
    return expected.latency.p75 <= MAX_P75_RATIO * max(each.latency.p75 for each in alone)


def _configurations(
    evaluator: CombinationEvaluator, levels: tuple[int, ...], least: float
) -> Iterator[tuple[int, list[Configuration]]]:
    """Evaluate a combination at each pruning scale, without pruning first, until the last level's score suffers."""
    whole = None
    for number, scale in enumerate((None, *(SCALES if evaluator.can_prune(levels) else ()))):
        calibration, selection = (evaluator.chain_of(levels, scale, part) for part in (CALIBRATION, SELECTION))
        score = calibration.alone(len(levels) - 1)
        whole = score if whole is None else whole
        # Rounded, so that exactly 2 points are not more than that.
        if round(whole - score - MAX_PRUNING_LOSS, 9) > 0:
            break
        yield number, list(dispatchers(levels, scale, calibration, selection, least))


def dispatchers(
    levels: tuple[int, ...], pruning: float | None, calibration: LevelChain, selection: LevelChain, least: float
) -> Iterator[Configuration]:
    """Evaluate a combination at every slope and weighting, from the largest cut-off down while the score suffices.

    Args:
        levels: Positions of the combination's levels.
        pruning: Scale α with which both chains were pruned; None: not pruned.
        calibration: Chain on the queries that weights and cut-offs come from.
        selection: Chain on the queries that the choice is made with.
        least: Minimum score on the calibration part: below it no smaller cut-off is tried. The mean of the levels' own.
    """
    tuner = Tuner(calibration)
    for slope, weighting in itertools.product(SLOPES, WEIGHTINGS):
        for cutoff in CUTOFFS:
            reach = calibration.reach(cutoff, slope)
            weights = by_accuracy(calibration, reach)
            if weighting == "tuned":
                weights = tuner.tune(reach, near=weights)
            score = calibration.score(reach, weights)
            # Rounded, so that a sum of probabilities that should equal it does.
            if round(least - score, 9) > 0:
                break
            expected = selection.expected(selection.reach(cutoff, slope), weights)
            yield Configuration(levels, pruning, cutoff, slope, weighting, weights, expected, score)
