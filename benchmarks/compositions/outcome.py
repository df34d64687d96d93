"""Tables and claims of the compositions: ratios within a round, medians over rounds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from benchmarks.compositions.levels import ARLO, ONE_ENGINE, PADDED, CascadeVariant
from benchmarks.compositions.rounds import LevelsResult
from benchmarks.compositions.utility import BY_UTILITY, HIGHEST_UTILITY, LEAST_TIME, OTAS, UtilityResult
from benchmarks.compositions.utility_served import ServedUtility
from benchmarks.report import Claim, Report
from benchmarks.tabi.crowd import OpenLoopResult
from benchmarks.tabi.serial import SerialResult

_BASELINES = {PADDED: "padded", ONE_ENGINE: "one_engine"}


def add_levels(report: Report, systems: Sequence[CascadeVariant], run: LevelsResult) -> None:
    """Report what Tabi gains from Arlo's runtimes for its levels.

    Args:
        report: Report to extend.
        systems: Variants of the cascade.
        run: Measurements of all rounds.
    """
    rows = [[each.name, each.description] for each in systems]
    report.add_table("Tabi's levels: systems", ["system", "description"], rows)
    names = [system.name for system in systems]
    rows = [_row(name, run.alone, names, _alone, [_same(cells, name) for cells in run.alone]) for name in names]
    report.add_table("one query at a time: medians of the rounds", _columns("same route"), rows)
    for load, rounds in run.loads.items():
        failed = {name: [sum(cells[name].errors.values()) for cells in rounds] for name in names}
        rows = [_row(name, rounds, names, _crowd, failed[name]) for name in names]
        title = f"Poisson arrivals at {load:.0%} of the capacity with one engine per level"
        report.add_table(title, _columns("failed"), rows)
    for baseline, short in _BASELINES.items():
        means = _ratios(run.alone, ARLO, baseline, lambda cell: _alone(cell)[0])
        report.claims.append(_claim(f"levels_mean_vs_{short}[alone]", means))
        for load, rounds in run.loads.items():
            for figure, of in (("mean", 0), ("p98", 2)):
                ratios = _ratios(rounds, ARLO, baseline, partial(_crowd_figure, of))
                report.claims.append(_claim(f"levels_{figure}_vs_{short}[{load:.0%}]", ratios))
    same = min(_same(cells, name) for cells in run.alone for name in names)
    report.claims.append(Claim("levels_same_way", ">= 0.99", same, note="minimum share of equal labels and levels"))
    lost = Counter(
        f"{name}: {code}"
        for rounds in run.loads.values()
        for cells in rounds
        for name, cell in cells.items()
        for code, number in cell.errors.items()
        for _ in range(number)
    )
    note = "; ".join(f"{number} of {what}" for what, number in lost.items())
    report.claims.append(Claim("levels_failed", "== 0", lost.total(), note=note))
    report.measured["levels"] = {
        "alone": [{name: asdict(cell) for name, cell in cells.items()} for cells in run.alone],
        "capacities": run.capacities,
        "loads": {
            str(load): [{name: asdict(cell) for name, cell in cells.items()} for cells in rounds]
            for load, rounds in run.loads.items()
        },
    }


def _crowd_figure(of: int, cell: OpenLoopResult) -> float:
    return _crowd(cell)[of]


def _columns(last: str) -> list[str]:
    return ["system", "mean ms", "p50", "p98", f"mean / {ONE_ENGINE}", f"mean / {PADDED}", last]


def _row(
    name: str, rounds: Sequence[dict[str, Any]], names: Sequence[str], figures: Callable[[Any], Any], last: Any
) -> list[str]:
    medians = np.median([figures(cells[name]) for cells in rounds], axis=0)
    ratios = []
    for baseline in (ONE_ENGINE, PADDED):
        found = _ratios(rounds, name, baseline, lambda cell: figures(cell)[0]) if baseline in names else []
        ratios.append(f"{statistics.median(found):.2f}" if found else "-")
    shown = f"{min(last):.1%}" if all(isinstance(each, float) for each in last) else str(sum(last))
    return [name, *(f"{value:.1f}" for value in medians), *ratios, shown]


def _alone(cell: SerialResult) -> tuple[float, float, float]:
    return cell.mean_ms, cell.percentile(50), cell.percentile(98)


def _crowd(cell: OpenLoopResult) -> tuple[float, float, float]:
    latencies = np.asarray(cell.latencies_ms)
    return float(latencies.mean()), float(np.percentile(latencies, 50)), float(np.percentile(latencies, 98))


def _ratios(rounds: Sequence[dict[str, Any]], name: str, baseline: str, figure: Callable[[Any], float]) -> list[float]:
    return [figure(cells[name]) / figure(cells[baseline]) for cells in rounds]


def _claim(name: str, ratios: Sequence[float]) -> Claim:
    spread = f"rounds: {min(ratios):.2f} to {max(ratios):.2f}"
    return Claim(name, "<= 1.0", statistics.median(ratios), note=spread)


def _same(cells: dict[str, SerialResult], name: str) -> float:
    """Return the share of the queries with the same label and level as on one engine per level."""
    mine, theirs = ({row: (label, level) for row, label, level in _routes(cells[each])} for each in (name, ONE_ENGINE))
    return float(np.mean([mine[row] == theirs[row] for row in mine]))


def _routes(cell: SerialResult) -> list[tuple[int, str, int]]:
    return list(zip(cell.queries, cell.labels, cell.levels, strict=True))


def add_utility(report: Report, found: Mapping[float, Sequence[dict[str, UtilityResult]]]) -> None:
    """Report the share of the offered utility that deadlines and utility earn over text tasks, by load.

    Args:
        report: Report to extend.
        found: Results by load, round and scheduler.
    """
    rows = []
    for load, rounds in found.items():
        for name in rounds[0]:
            shares = [each[name].share for each in rounds]
            ratios = _ratios(rounds, name, LEAST_TIME, lambda each: each.share)
            rows.append(
                [
                    f"{load:.0%}",
                    name,
                    f"{statistics.median(shares):.1%}",
                    f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                    f"{statistics.median(each[name].in_time / each[name].queries for each in rounds):.1%}",
                    str(sum(each[name].late for each in rounds)),
                    f"{statistics.median(each[name].decision_ms for each in rounds):.2f}",
                ]
            )
        for other, short in ((LEAST_TIME, "pets"), (OTAS, "otas_plan"), (HIGHEST_UTILITY, "highest_utility_first")):
            ratios = _ratios(rounds, BY_UTILITY, other, lambda each: each.share)
            spread = f"rounds: {min(ratios):.2f} to {max(ratios):.2f}; simulated"
            report.claims.append(
                Claim(f"utility_vs_{short}[{load:.0%}]", ">= 1.0", statistics.median(ratios), note=spread)
            )
    columns = ["load", "system", "utility earned", f"/ {LEAST_TIME}", "answered in time", "late", "ms per decision"]
    report.add_table("deadline and utility over text tasks: simulated with the serving policies", columns, rows)
    report.measured["utility"] = {
        str(load): [{name: asdict(each) for name, each in systems.items()} for systems in rounds]
        for load, rounds in found.items()
    }


def add_utility_served(report: Report, found: Mapping[float, Sequence[dict[str, ServedUtility]]]) -> None:
    """Report the same through the server, by the client's clock.

    Args:
        report: Report to extend.
        found: Results by load, round and system.
    """
    rows = []
    for load, rounds in found.items():
        for name in rounds[0]:
            rows.append(
                [
                    f"{load:.0%}",
                    name,
                    f"{statistics.median(each[name].utility for each in rounds):.1%}",
                    f"{statistics.median(each[name].in_time for each in rounds):.1%}",
                    f"{max(each[name].others for each in rounds):.0%}",
                ]
            )
        ratios = _ratios(rounds, BY_UTILITY, LEAST_TIME, lambda each: each.utility)
        spread = f"rounds: {min(ratios):.2f} to {max(ratios):.2f}"
        report.claims.append(Claim(f"utility_served[{load:.0%}]", ">= 1.0", statistics.median(ratios), note=spread))
    columns = ["load", "system", "utility earned", "answered in time", "others"]
    report.add_table("deadline and utility over text tasks: through the server", columns, rows)
    report.measured["utility_served"] = {
        str(load): [{name: asdict(each) for name, each in systems.items()} for systems in rounds]
        for load, rounds in found.items()
    }
