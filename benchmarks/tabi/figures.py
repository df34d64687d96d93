"""A task's rounds in figures: what the table of systems says, and the dispatcher's quality."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tabi.packing import Packing
from benchmarks.tabi.rounds import TaskRun
from benchmarks.tabi.serial import Cell
from benchmarks.tabi.statistics import Interval, paired_difference, right_by_query
from benchmarks.tabi.variants import LARGE, PADDED
from benchmarks.tabi.voting import Ensemble
from tidal.tabi.manifest import TabiManifest

PERCENTILES = (25, 50, 75, 99)
COCKTAIL = "voting (Cocktail)"
Statistic = Callable[[Cell], float]


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """One system on one task, one query at a time.

    Attributes:
        accuracy: share of right answers, every query counting once.
        against_large: accuracy less the large model's on the same queries.
        mean_ms: over all rounds.
        percentiles_ms: p25, p50, p75, p99.
        returned: share of the queries that the first level answered; None for a single model.
        per_second: queries a second, one at a time.
        cost: Σ 1/Pf · T · W (§7.1), T in ms.
        overhead_ms: what a query that returns early takes longer than on the first level's model itself, the median;
            None where there is no such query.
        server: share of the cores that the server used.
        others: share that other work used.
    """

    accuracy: float
    against_large: Interval
    mean_ms: float
    percentiles_ms: tuple[float, ...]
    returned: float | None
    per_second: float
    cost: float
    overhead_ms: float | None
    server: float
    others: float


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Who got which queries right (§7.3.2): of those that the first level returned, and of those that went on."""

    returned: float
    returned_by_small: float
    returned_by_large: float
    re_routed_by_cascade: float
    re_routed_by_small: float


def single_figures(run: TaskRun, system: str, truth: Sequence[str], packing: Packing) -> SystemFigures:
    """Figures of a model that answers every query itself."""
    cells = [each[system] for each in run.serial]
    return _figures(run, cells, truth, cost=mean_ms(cells) / packing.factor)


def cascade_figures(
    run: TaskRun, system: str, truth: Sequence[str], manifest: TabiManifest, packings: Mapping[str, Packing]
) -> SystemFigures:
    """Figures of a cascade's front."""
    cells = [each[system] for each in run.serial]
    levels = manifest.candidates[manifest.chosen].levels
    names = [manifest.levels[level].name for level in levels]
    answered = np.concatenate([cell.levels for cell in cells])
    shares = [float((answered >= level + 1).mean()) for level in levels]  # W: who ran each level
    # What the models' own times say of how the mean divides among the levels.
    alone = [mean_ms([each[name] for each in run.serial]) for name in names]
    parts = np.array(shares) * np.array(alone)
    inverse = np.array([1 / packings[name].factor for name in names])
    cost = mean_ms(cells) * float(parts @ inverse / parts.sum())
    returned = None if len(levels) == 1 else float((answered == levels[0] + 1).mean())
    # A level that pads is not the model that is measured by itself.
    comparable = not manifest.levels[levels[0]].model.endswith(PADDED)
    overhead = _overhead(run, system, names[0], levels[0] + 1) if comparable else None
    return _figures(run, cells, truth, cost=cost, returned=returned, overhead_ms=overhead)


def ensemble_figures(
    run: TaskRun, ensemble: Ensemble, truth: Sequence[str], packings: Mapping[str, Packing]
) -> SystemFigures:
    """Figures of a voting ensemble: its members' answers of this run, at the slowest member's latency alone."""
    cells = []
    for each in run.serial:
        slowest = each[ensemble.members[-1]]
        columns = zip(*(each[name].labels for name in ensemble.members), strict=True)
        votes = [ensemble.vote(dict(zip(ensemble.members, labels, strict=True))) for labels in columns]
        cells.append(Cell(slowest.queries, slowest.latencies_ms, votes, slowest.levels, slowest.server, slowest.others))
    cost = sum(mean_ms([each[name] for each in run.serial]) / packings[name].factor for name in ensemble.members)
    return _figures(run, cells, truth, cost=cost)


def dispatch(run: TaskRun, system: str, small: str, first: int, truth: Sequence[str]) -> Dispatch:
    """The dispatcher's quality: queries that it returned as the large model answers them, and the other way round.

    Args:
        run: the rounds.
        system: a cascade.
        small: its first level.
        first: that level's number.
        truth: by query.
    """
    back: list[tuple[bool, bool]] = []
    on: list[tuple[bool, bool]] = []
    for each in run.serial:
        ours = each[system]
        for place, row in enumerate(ours.queries):
            own = ours.labels[place] == truth[row]
            if ours.levels[place] == first:
                back.append((own, each[LARGE].labels[place] == truth[row]))
            else:
                on.append((own, each[small].labels[place] == truth[row]))
    nan = (float("nan"), float("nan"))
    kept, gained = (np.mean(found, axis=0) if found else nan for found in (back, on))
    return Dispatch(
        len(back) / (len(back) + len(on)), float(kept[0]), float(kept[1]), float(gained[0]), float(gained[1])
    )


def accuracies(cells: Sequence[Cell], truth: Sequence[str]) -> dict[int, float]:
    """Share of right answers by query, over rounds."""
    return right_by_query(
        [
            (cell.queries, [label == truth[row] for label, row in zip(cell.labels, cell.queries, strict=True)])
            for cell in cells
        ]
    )


def ratios(run: TaskRun, system: str, other: str, statistic: Statistic) -> list[float]:
    """system / other in each round, one query at a time."""
    return [statistic(each[system]) / statistic(each[other]) for each in run.serial]


def crowd_ratios(run: TaskRun, system: str, other: str, percent: float | None) -> list[float]:
    """system / other in each round, under Poisson arrivals: of a percentile, or the means."""
    found = []
    for each in run.crowd:
        ours, theirs = (
            np.mean(cell.latencies_ms) if percent is None else np.percentile(cell.latencies_ms, percent)
            for cell in (each[system], each[other])
        )
        found.append(float(ours / theirs))
    return found


def mean_ms(cells: Sequence[Cell]) -> float:
    """Mean latency over all rounds."""
    return float(np.mean(np.concatenate([cell.latencies_ms for cell in cells])))


def _figures(
    run: TaskRun,
    cells: Sequence[Cell],
    truth: Sequence[str],
    *,
    cost: float,
    returned: float | None = None,
    overhead_ms: float | None = None,
) -> SystemFigures:
    right = accuracies(cells, truth)
    latencies = np.concatenate([cell.latencies_ms for cell in cells])
    return SystemFigures(
        accuracy=float(np.mean(list(right.values()))),
        against_large=paired_difference(right, accuracies([each[LARGE] for each in run.serial], truth)),
        mean_ms=float(latencies.mean()),
        percentiles_ms=tuple(np.percentile(latencies, PERCENTILES).tolist()),
        returned=returned,
        per_second=1e3 / float(latencies.mean()),
        cost=cost,
        overhead_ms=overhead_ms,
        server=statistics.median(cell.server for cell in cells),
        others=statistics.median(cell.others for cell in cells),
    )


def _overhead(run: TaskRun, system: str, small: str, first: int) -> float | None:
    added = [
        ours - alone
        for each in run.serial
        for ours, alone, level in zip(
            each[system].latencies_ms, each[small].latencies_ms, each[system].levels, strict=True
        )
        if level == first
    ]
    return statistics.median(added) if added else None


@dataclass(frozen=True, slots=True)
class Bound:
    """What a cascade's mean latency is made of, in units of the large model's, and what it could be at best.

    Attributes:
        small: the small model, which every query runs, asked by itself.
        front: what the cascade adds to a query that returns early: a further call in the server, and its decision.
        re_routed: what re-routed queries take beyond both, times their share.
        returned: share that returned early.
        ideal_returned: share that an all-knowing dispatcher would return, of queries where the small model is right
            or the large one is wrong too.
    """

    small: float
    front: float
    re_routed: float
    returned: float
    ideal_returned: float


def bound(run: TaskRun, system: str, small: str, first: int, truth: Sequence[str]) -> Bound:
    """What bounds a cascade of this pair of models; arguments as of `dispatch`."""
    large = mean_ms([each[LARGE] for each in run.serial])
    early, added, ideal, count = [], 0.0, 0, 0
    for each in run.serial:
        ours, own, other = each[system], each[small], each[LARGE]
        for place, row in enumerate(ours.queries):
            count += 1
            beyond = ours.latencies_ms[place] - own.latencies_ms[place]
            added += beyond
            if ours.levels[place] == first:
                early.append(beyond)
            ideal += own.labels[place] == truth[row] or other.labels[place] != truth[row]
    alone = mean_ms([each[small] for each in run.serial])
    front = float(np.mean(early)) if early else 0.0
    rest = added / count - front
    return Bound(alone / large, front / large, rest / large, len(early) / count, ideal / count)
