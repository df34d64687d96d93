"""Figures of a task's rounds: the table of systems, the dispatcher's quality, and the bound of the latency."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tabi.packing import PackingFactor
from benchmarks.tabi.rounds import TaskRun
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.statistics import BootstrapInterval, paired_difference, right_by_query
from benchmarks.tabi.variants import LARGE, PADDED
from benchmarks.tabi.voting import VotingEnsemble
from tidal.tabi.manifest import TabiManifest

PERCENTILES = (25, 50, 75, 99)
COCKTAIL = "voting (Cocktail)"
Statistic = Callable[[SerialResult], float]


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """Figures of one system on one task, one query at a time.

    Attributes:
        accuracy: Share of correct answers; every query counts once.
        against_large: Accuracy minus that of the large model on the same queries.
        mean_ms: Mean latency over all rounds, milliseconds.
        percentiles_ms: p25, p50, p75 and p99 of the latency, milliseconds.
        returned: Share of the queries that the first level answered; None for a single model.
        per_second: Queries per second, one at a time.
        cost: Σ 1/Pf · T · W (§7.1), T in milliseconds.
        overhead_ms: Median latency of a query that returns early, minus that on the first level's model alone; None
            without such queries.
        server: Share of the cores that the server used.
        others: Share of the cores that other work used.
    """

    accuracy: float
    against_large: BootstrapInterval
    mean_ms: float
    percentiles_ms: tuple[float, ...]
    returned: float | None
    per_second: float
    cost: float
    overhead_ms: float | None
    server: float
    others: float


@dataclass(frozen=True, slots=True)
class DispatcherQuality:
    """Accuracies on the queries that the first level returned, and on those that were re-routed (§7.3.2)."""

    returned: float
    returned_by_small: float
    returned_by_large: float
    re_routed_by_cascade: float
    re_routed_by_small: float


def single_figures(run: TaskRun, system: str, truth: Sequence[str], packing: PackingFactor) -> SystemFigures:
    """Return the figures of a single model.

    Args:
        run: Rounds of the task.
        system: Name of the model.
        truth: Labels by query.
        packing: Packing factor of the model.
    """
    cells = [each[system] for each in run.serial]
    return _figures(run, cells, truth, cost=mean_ms(cells) / packing.factor)


def cascade_figures(
    run: TaskRun, system: str, truth: Sequence[str], manifest: TabiManifest, packings: Mapping[str, PackingFactor]
) -> SystemFigures:
    """Return the figures of a cascade.

    Args:
        run: Rounds of the task.
        system: Name of the cascade.
        truth: Labels by query.
        manifest: Manifest of the cascade.
        packings: Packing factors by level.
    """
    cells = [each[system] for each in run.serial]
    levels = manifest.candidates[manifest.chosen].levels
    names = [manifest.levels[level].name for level in levels]
    answered = np.concatenate([cell.levels for cell in cells])
    shares = [float((answered >= level + 1).mean()) for level in levels]  # W: share of the queries that ran each level
    # The models' own times divide the mean among the levels.
    alone = [mean_ms([each[name] for each in run.serial]) for name in names]
    parts = np.array(shares) * np.array(alone)
    inverse = np.array([1 / packings[name].factor for name in names])
    cost = mean_ms(cells) * float(parts @ inverse / parts.sum())
    returned = None if len(levels) == 1 else float((answered == levels[0] + 1).mean())
    # A level that pads is not the model that is measured alone.
    comparable = not manifest.levels[levels[0]].model.endswith(PADDED)
    overhead = _overhead(run, system, names[0], levels[0] + 1) if comparable else None
    return _figures(run, cells, truth, cost=cost, returned=returned, overhead_ms=overhead)


def ensemble_figures(
    run: TaskRun, ensemble: VotingEnsemble, truth: Sequence[str], packings: Mapping[str, PackingFactor]
) -> SystemFigures:
    """Return the figures of a voting ensemble: its members' answers of this run, at the slowest member's latency.

    Args:
        run: Rounds of the task.
        ensemble: Voting ensemble.
        truth: Labels by query.
        packings: Packing factors by model.
    """
    cells = []
    for each in run.serial:
        slowest = each[ensemble.members[-1]]
        columns = zip(*(each[name].labels for name in ensemble.members), strict=True)
        votes = [ensemble.vote(dict(zip(ensemble.members, labels, strict=True))) for labels in columns]
        cells.append(
            SerialResult(slowest.queries, slowest.latencies_ms, votes, slowest.levels, slowest.server, slowest.others)
        )
    cost = sum(mean_ms([each[name] for each in run.serial]) / packings[name].factor for name in ensemble.members)
    return _figures(run, cells, truth, cost=cost)


def dispatch(run: TaskRun, system: str, small: str, first: int, truth: Sequence[str]) -> DispatcherQuality:
    """Return the dispatcher's quality: accuracies on returned and on re-routed queries, and the other model's.

    Args:
        run: Rounds of the task.
        system: Name of the cascade.
        small: Name of its first level.
        first: Number of that level.
        truth: Labels by query.
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
    return DispatcherQuality(
        len(back) / (len(back) + len(on)), float(kept[0]), float(kept[1]), float(gained[0]), float(gained[1])
    )


def accuracies(cells: Sequence[SerialResult], truth: Sequence[str]) -> dict[int, float]:
    """Return the share of correct answers by query, over rounds.

    Args:
        cells: Results of the rounds.
        truth: Labels by query.
    """
    return right_by_query(
        [
            (cell.queries, [label == truth[row] for label, row in zip(cell.labels, cell.queries, strict=True)])
            for cell in cells
        ]
    )


def ratios(run: TaskRun, system: str, other: str, statistic: Statistic) -> list[float]:
    """Return the ratio of two systems in each round, one query at a time.

    Args:
        run: Rounds of the task.
        system: Numerator.
        other: Denominator.
        statistic: Figure of a round.
    """
    return [statistic(each[system]) / statistic(each[other]) for each in run.serial]


def open_loop_ratios(run: TaskRun, system: str, other: str, percent: float | None) -> list[float]:
    """Return the ratio of two systems' latencies in each round, under Poisson arrivals.

    Args:
        run: Rounds of the task.
        system: Numerator.
        other: Denominator.
        percent: Percentile; None compares the means.
    """
    found = []
    for each in run.crowd:
        ours, theirs = (
            np.mean(cell.latencies_ms) if percent is None else np.percentile(cell.latencies_ms, percent)
            for cell in (each[system], each[other])
        )
        found.append(float(ours / theirs))
    return found


def mean_ms(cells: Sequence[SerialResult]) -> float:
    """Return the mean latency over all rounds, milliseconds."""
    return float(np.mean(np.concatenate([cell.latencies_ms for cell in cells])))


def _figures(
    run: TaskRun,
    cells: Sequence[SerialResult],
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
class LatencyBound:
    """The parts of a cascade's mean latency, in units of the large model's, and the best possible dispatcher.

    Attributes:
        small: Latency of the small model, which every query runs, alone.
        front: Time that the cascade adds to a query that returns early: a further call in the server, and the decision.
        re_routed: Further time of re-routed queries, times their share.
        returned: Share of the queries that returned early.
        ideal_returned: Share that an oracle dispatcher would return: the small model is right, or the large one is
            wrong too.
    """

    small: float
    front: float
    re_routed: float
    returned: float
    ideal_returned: float


def bound(run: TaskRun, system: str, small: str, first: int, truth: Sequence[str]) -> LatencyBound:
    """Return the parts of the mean latency of a cascade of this pair of models.

    Args:
        run: Rounds of the task.
        system: Name of the cascade.
        small: Name of its first level.
        first: Number of that level.
        truth: Labels by query.
    """
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
    return LatencyBound(alone / large, front / large, rest / large, len(early) / count, ideal / count)
