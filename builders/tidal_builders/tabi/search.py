"""All configurations of a cascade that are worth having, and what each does (Tabi §5).

Temperatures and weights come from the calibration part, cut-offs and slopes from the selection part, the order of the
levels and the pruning scales from both. The report part only says what came of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, Expected, Latency, Metric, ServingOverhead
from tidal_builders.tabi.bench import Bench
from tidal_builders.tabi.calibrate import Calibrated
from tidal_builders.tabi.evaluate import Chain
from tidal_builders.tabi.outputs import CALIBRATION, REPORT, SELECTION, Data, LevelFacts, Rerun
from tidal_builders.tabi.thinning import Found, thin
from tidal_builders.tabi.weights import Tuner, Weighting, by_accuracy
from tidal_builders.timing import Progress

CUTOFFS = tuple(round(0.95 - 0.05 * step, 2) for step in range(19))  # c
SLOPES = (5.0, 10.0, 20.0, 40.0)  # k
# α. The paper goes on until the accuracy suffers; a level that nothing makes worse would never stop there.
SCALES = tuple(round(0.5 + 0.1 * step, 1) for step in range(11))
WEIGHTINGS: tuple[Weighting, ...] = ("accuracy", "tuned")
# Of the slowest level's p75, what a candidate's may be.
MOST_P75 = 1.5
# Points of score that pruning may cost the last level.
MOST_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class LevelResult:
    """A level as the manifest has it.

    Attributes:
        index: in the sequence of levels that was searched.
        calibrated: its calibration and reliability.
        score: alone, on the report part.
        latency: of its engine alone, on the report part.
    """

    index: int
    calibrated: Calibrated
    score: float
    latency: Latency


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        levels: ascending by score; candidates name levels by their place here.
        candidates: the kept ones, by mean latency on the selection part.
        tried: configurations of several levels that were evaluated.
        too_slow: those of them that miss the rule on the p75 latency.
    """

    levels: tuple[LevelResult, ...]
    candidates: tuple[Candidate, ...]
    tried: int
    too_slow: int


def search(
    data: Data,
    levels: Sequence[LevelFacts],
    rerun: Rerun,
    *,
    metric: Metric,
    tolerance: float | None = None,
    serving: ServingOverhead | None = None,
    progress: Progress = lambda _: None,
) -> SearchResult:
    """Calibrate the levels, try all combinations of them, and keep the candidates that may be worth choosing.

    Kept are all single levels and, for each combination and weighting, what `thin` leaves.

    Args:
        data: labelled queries.
        levels: each with its outputs on all queries.
        rerun: runs a level on pruned queries.
        metric: measures the answers; "accuracy" means a classification, all others a regression.
        tolerance: of a regression, how far a value may lie from the truth and be right.
        serving: what serving adds to the engines' time; None leaves it out of all latencies.
        progress: told the share that is done.

    Raises:
        InvalidArgument: a part of the data is empty, or the tolerance does not go with the metric.
    """
    _check(data, metric, tolerance)
    bench = Bench(data, levels, rerun, metric=metric, tolerance=tolerance, serving=serving)
    places = range(len(levels))
    singles = [bench.single(level) for level in places]
    combinations = [each for size in range(2, len(levels) + 1) for each in itertools.combinations(places, size)]
    kept, tried, too_slow = list(singles), 0, 0
    for done, combination in enumerate(combinations):
        alone = [singles[level].selection for level in combination]
        evaluated: list[Found] = []
        for scale, found in _configurations(bench, combination, least=float(np.mean([each.score for each in alone]))):
            evaluated += found
            progress(0.9 * (done + (scale + 1) / (len(SCALES) + 1)) / len(combinations))
        fast = [each for each in evaluated if fast_enough(each.selection, alone)]
        tried, too_slow = tried + len(evaluated), too_slow + len(evaluated) - len(fast)
        kept += thin(fast)
    groups: dict[tuple[tuple[int, ...], float | None], list[Found]] = {}
    for each in kept:
        groups.setdefault((each.levels, each.pruning), []).append(each)
    candidates: list[Candidate] = []
    for done, group in enumerate(groups.values()):
        candidates += bench.reported(group)
        progress(0.9 + 0.1 * (done + 1) / len(groups))
    candidates.sort(key=lambda each: each.selection.latency.mean)
    alone_reported = {each.levels[0]: each.reported.score for each in candidates if len(each.levels) == 1}
    results = (
        LevelResult(index, bench.calibrated[place], alone_reported[place], bench.engine_latency(place))
        for place, index in enumerate(bench.order)
    )
    return SearchResult(tuple(results), tuple(candidates), tried, too_slow)


def _check(data: Data, metric: Metric, tolerance: float | None) -> None:
    for part, name in ((CALIBRATION, "calibration"), (SELECTION, "selection"), (REPORT, "report")):
        if not (data.part == part).any():
            raise InvalidArgument(f"the {name} part of the data holds no queries; each part needs at least one")
    if (metric == "accuracy") != (tolerance is None):
        raise InvalidArgument(f"tolerance is for regressions, and they need it; the metric is {metric}")


def fast_enough(expected: Expected, alone: Sequence[Expected]) -> bool:
    """The rule that makes too many or too large levels impractical: p75 within 1.5 times the slowest level's.

    Args:
        expected: the candidate's figures.
        alone: its levels', each by itself.
    """
    return expected.latency.p75 <= MOST_P75 * max(each.latency.p75 for each in alone)


def _configurations(bench: Bench, levels: tuple[int, ...], least: float) -> Iterator[tuple[int, list[Found]]]:
    """What the combination does at each pruning scale, none first, until the last level loses too much by it."""
    rows = bench.rows(CALIBRATION, SELECTION)
    parts = [(np.flatnonzero(np.isin(rows, bench.rows(part))), bench.rows(part)) for part in (CALIBRATION, SELECTION)]
    whole = None
    for number, scale in enumerate((None, *(SCALES if bench.prunes(levels) else ()))):
        run = bench.run(levels, scale, rows)
        score = bench.chain(levels, scale, run, rows).alone(len(levels) - 1)
        whole = score if whole is None else whole
        # Rounded, so that exactly 2 points are not more than that.
        if round(whole - score - MOST_LOSS, 9) > 0:
            break
        calibration, selection = (bench.chain(levels, scale, run.take(inside), part) for inside, part in parts)
        yield number, list(dispatchers(levels, scale, calibration, selection, least))


def dispatchers(
    levels: tuple[int, ...], pruning: float | None, calibration: Chain, selection: Chain, least: float
) -> Iterator[Found]:
    """What a combination does at every slope and weighting, from the largest cut-off down while it is good enough.

    Args:
        levels: of the combination.
        pruning: how the two chains were pruned.
        calibration: the combination on the queries that weights come from.
        selection: the combination on the queries that cut-offs come from.
        least: score below which no smaller cut-off is tried, the mean of the levels' own.
    """
    tuner = Tuner(calibration)
    for slope, weighting in itertools.product(SLOPES, WEIGHTINGS):
        for cutoff in CUTOFFS:
            reach = calibration.reach(cutoff, slope)
            weights = by_accuracy(calibration, reach)
            if weighting == "tuned":
                weights = tuner.tune(reach, near=weights)
            expected = selection.expected(selection.reach(cutoff, slope), weights)
            # Rounded, so that a sum of probabilities that should equal it does.
            if round(least - expected.score, 9) > 0:
                break
            yield Found(levels, pruning, cutoff, slope, weighting, weights, expected)
