"""The tables of the report: systems per task, open loops, and the parts of the cascade."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.report import Report
from benchmarks.tabi import figures
from benchmarks.tabi.equality import RouteEquality
from benchmarks.tabi.figures import COCKTAIL, DispatcherQuality, LatencyBound, SystemFigures
from benchmarks.tabi.importance import ImportanceCost
from benchmarks.tabi.rounds import LOAD, TaskRun
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.sweeps import PUBLISHED, PrunedWords, SweepPoint
from benchmarks.tabi.variants import LARGE
from benchmarks.tabi.voting import VotingEnsemble


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """All results of a task.

    Attributes:
        name: Name of the task.
        run: Rounds of the task.
        truth: Labels of the dev split.
        single: Name of the fastest single model that meets the target (INFaaS).
        systems: Figures by system.
        ensemble: Best voting ensemble of smaller models; None if there is none.
        equality: Equality of routes.
    """

    name: str
    run: TaskRun
    truth: Sequence[str]
    single: str
    systems: Mapping[str, SystemFigures]
    ensemble: VotingEnsemble | None
    equality: RouteEquality


def add_systems(report: Report, outcome: TaskOutcome) -> None:
    """Report one row per system, one query at a time.

    Args:
        report: Report to extend.
        outcome: Results of a task.
    """
    large = outcome.systems[LARGE].mean_ms
    rows, costs = [], []
    for system, found in outcome.systems.items():
        name = f"{system} (INFaaS)" if system == outcome.single else system
        if system == COCKTAIL and outcome.ensemble is not None and not outcome.ensemble.equal:
            name += ", less accurate"
        rows.append(
            [
                name,
                f"{found.accuracy:.2%}",
                str(found.against_large),
                *(f"{value:.2f}" for value in (found.mean_ms, *found.percentiles_ms)),
                f"{found.mean_ms / large:.2f}",
                "-" if found.returned is None else f"{found.returned:.1%}",
            ]
        )
        costs.append(
            [
                name,
                f"{found.per_second:.0f}",
                f"{found.cost:.2f}",
                "-" if found.overhead_ms is None else f"{found.overhead_ms:.2f}",
                f"{found.server:.0%}",
                f"{found.others:.0%}",
            ]
        )
    columns = ["system", "accuracy", "vs large (95 %)", "mean ms", "p25", "p50", "p75", "p99", "/ large", "early"]
    report.add_table(f"{outcome.name}: one query at a time", columns, rows)
    # cost: Σ 1/Pf · T · W; overhead: of a query that returns early, over the small model alone; cpu, others: share of
    # the cores that the server and other work used.
    report.add_table(f"{outcome.name}: cost", ["system", "1/s", "cost", "overhead ms", "cpu", "others"], costs)


def add_open_loop(report: Report, outcomes: Sequence[TaskOutcome]) -> None:
    """Report Poisson arrivals, pooled over rounds.

    Args:
        report: Report to extend.
        outcomes: Results of all tasks.
    """
    rows = []
    for outcome in outcomes:
        for system in outcome.run.crowd[0]:
            cells = [each[system] for each in outcome.run.crowd]
            pooled = np.concatenate([cell.latencies_ms for cell in cells])
            p50, p99 = np.percentile(pooled, (50, 99))
            rows.append(
                [
                    outcome.name,
                    system,
                    f"{statistics.median(cell.offered for cell in cells):.0f}",
                    *(f"{value:.2f}" for value in (pooled.mean(), p50, p99, pooled.max())),
                    str(sum(sum(cell.errors.values()) for cell in cells)),
                    f"{statistics.median(cell.server for cell in cells):.0%}",
                    f"{statistics.median(cell.others for cell in cells):.0%}",
                    f"{sum(bool(cell.warning) for cell in cells)}/{len(cells)}",
                ]
            )
    # cpu: share of the cores that the server used; others: share that other work, the load generator included, used;
    # late: rounds in which the load generator could not keep to its schedule.
    columns = ["task", "system", "offered 1/s", "mean ms", "p50", "p99", "max", "failed", "cpu", "others", "late"]
    report.add_table(f"Poisson arrivals at {LOAD:.0%} of the large model's capacity", columns, rows)


def add_dispatch(report: Report, found: Mapping[str, DispatcherQuality]) -> None:
    """Report the dispatcher's quality, one row per task.

    Args:
        report: Report to extend.
        found: Dispatcher's quality by task.
    """
    columns = ["task", "returned", "returned: small", "large", "gap", "re-routed: cascade", "small", "gap"]
    rows = [
        [
            name,
            f"{each.returned:.1%}",
            f"{each.returned_by_small:.2%}",
            f"{each.returned_by_large:.2%}",
            f"{each.returned_by_large - each.returned_by_small:+.2%}",
            f"{each.re_routed_by_cascade:.2%}",
            f"{each.re_routed_by_small:.2%}",
            f"{each.re_routed_by_cascade - each.re_routed_by_small:+.2%}",
        ]
        for name, each in found.items()
    ]
    title = "the dispatcher (§7.3.2): accuracy on returned and on re-routed queries, and the other model's"
    report.add_table(title, columns, rows)


def add_points(report: Report, title: str, found: Mapping[str, Sequence[SweepPoint]]) -> None:
    """Report a sweep, one row per setting.

    Args:
        report: Report to extend.
        title: Title of the table.
        found: Points of the sweep by task.
    """
    rows = [
        [
            task,
            point.name,
            f"{point.accuracy:.2%}",
            f"{point.mean_ms:.2f}",
            f"{point.returned:.1%}",
            f"{point.pruned:.1%}",
        ]
        for task, points in found.items()
        for point in points
    ]
    report.add_table(title, ["task", "setting", "accuracy", "mean ms", "early", "words pruned"], rows)


def add_pruned_words(report: Report, found: Mapping[str, Sequence[PrunedWords]]) -> None:
    """Report the share of pruned words, one row per task and scale, beside the paper's for SST-2.

    Args:
        report: Report to extend.
        found: Shares by task.
    """
    rows = [
        [
            task,
            f"{each.scale:g}",
            f"{each.re_routed:.1%}",
            f"{each.every:.1%}",
            f"{PUBLISHED[each.scale]:.1%}" if task == "sst2" else "-",
        ]
        for task, scales in found.items()
        for each in scales
    ]
    columns = ["task", "α", "of re-routed queries", "of all queries", "paper (§7.4)"]
    report.add_table("words that pruning removes", columns, rows)


def add_importance(report: Report, found: Mapping[str, ImportanceCost]) -> None:
    """Report the cost of the importance of words on the first level's engine, one row per task.

    Args:
        report: Report to extend.
        found: Costs by task.
    """
    rows = [
        [
            task,
            each.level,
            f"{each.with_ms:.2f}",
            f"{each.without_ms:.2f}",
            f"{each.ratio:.3f}",
            f"{min(each.ratios):.3f}-{max(each.ratios):.3f}",
        ]
        for task, each in found.items()
    ]
    columns = ["task", "level", "with, ms", "without, ms", "ratio", "rounds"]
    report.add_table(
        "extracting importance: a query on the level's engine, and on one without that output", columns, rows
    )


def measured(outcome: TaskOutcome) -> dict[str, object]:
    """Return a task's figures for the JSON, with those of each round.

    Args:
        outcome: Results of the task.
    """
    return {
        "systems": {system: asdict(found) for system, found in outcome.systems.items()},
        "infaas": outcome.single,
        "ensemble": None
        if outcome.ensemble is None
        else {name: getattr(outcome.ensemble, name) for name in ("members", "accuracy", "equal")},
        "capacities": outcome.run.capacities,
        "mean_vs_large": {
            system: figures.ratios(outcome.run, system, LARGE, mean_ms) for system in outcome.run.serial[0]
        },
        "p99_vs_large": {
            system: figures.ratios(outcome.run, system, LARGE, p99_ms) for system in outcome.run.serial[0]
        },
        "poisson_mean_vs_large": {
            system: figures.open_loop_ratios(outcome.run, system, LARGE, None) for system in outcome.run.crowd[0]
        },
        "poisson_p99_vs_large": {
            system: figures.open_loop_ratios(outcome.run, system, LARGE, 99) for system in outcome.run.crowd[0]
        },
        "route_equality": asdict(outcome.equality),
    }


def add_bounds(report: Report, found: Mapping[str, LatencyBound], engines: Mapping[str, float]) -> None:
    """Report the parts of the mean latency, one row per task.

    Args:
        report: Report to extend.
        found: Parts by task.
        engines: Ratio of the engines' times alone, by task.
    """
    columns = ["task", "small", "+ front", "+ re-routed", "= / large", "returned", "at best", "/ large at best"]
    rows = []
    for task, each in found.items():
        # With an oracle fewer queries are re-routed, each at the same cost.
        rest = 1 - each.returned
        always = each.small + each.front
        best = always + (each.re_routed * (1 - each.ideal_returned) / rest if rest else 0.0)
        rows.append(
            [
                task,
                *(f"{value:.2f}" for value in (each.small, each.front, each.re_routed, always + each.re_routed)),
                f"{each.returned:.1%}",
                f"{each.ideal_returned:.1%}",
                f"{best:.2f}",
                f"{engines[task]:.2f}",
            ]
        )
    title = "parts of the mean latency, in units of the large model's; at best: an oracle dispatcher"
    report.add_table(title, [*columns, "engines alone"], rows)


def mean_ms(cell: SerialResult) -> float:
    """Return the mean latency of a round, milliseconds."""
    return cell.mean_ms


def p99_ms(cell: SerialResult) -> float:
    """Return the 99th percentile of the latency of a round, milliseconds."""
    return cell.percentile(99)
