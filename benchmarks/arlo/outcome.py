"""Adds the results of the rounds to the report: latencies by load, ratios, claims."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.arlo.measure import ArloCell
from benchmarks.arlo.rounds import ArloRun
from benchmarks.arlo.systems import BIN_PACKING, DT, DT_BATCHED, PARTITIONED, POLYMORPHIC, ST, ArloCase, PlannedCase
from benchmarks.report import Claim, Report

Statistic = Callable[[ArloCell], float]


def mean_ms(cell: ArloCell) -> float:
    """Mean latency in ms."""
    return cell.mean_ms


def p98_ms(cell: ArloCell) -> float:
    """98th percentile of the latency in ms, the tail latency of the paper."""
    return cell.percentile_ms(98)


def add_tables(report: Report, run: ArloRun, plan: Sequence[PlannedCase], slo_ms: float) -> None:
    """Add one row per cell: latencies pooled over the rounds, other values as medians or sums."""
    rows = []
    for planned in plan:
        for system in planned.systems:
            row = _row(run, planned.case, system, slo_ms)
            rows.append([str(planned.case), system, *row])
            if cells := _cells(run, planned.case, system):
                report.measured.setdefault("cells", {}).setdefault(str(planned.case), {})[system] = {
                    "model": cells[0].model,
                    "rounds": [_summary(cell, slo_ms) for cell in cells],
                    "all": dict(zip(("mean_ms", "p50_ms", "p98_ms", "max_ms"), _pooled(cells), strict=True)),
                }
    columns = ["load", "system", "requests", "mean ms", "p50", "p98", "max", f"> {slo_ms:.0f} ms", "failed", "1/s"]
    # cpu: share of the cores that the server used; others: share that other processes used; late: rounds in which the
    # load generator could not keep to its schedule.
    report.add_table("latency, tokenisation included", [*columns, "batch", "cpu", "others", "late"], rows)


def add_claims(report: Report, run: ArloRun) -> None:
    """Add the claims, which are about the polymorphic placement under Poisson arrivals."""
    for percent in (40, 70):
        _claim(
            report,
            run,
            f"mean_vs_st[{percent}]",
            "<= 0.30",
            ArloCase(ST, percent, "poisson"),
            ST,
            mean_ms,
            "0.297-0.333",
        )
    for percent in (40, 70):
        _claim(report, run, f"mean_vs_dt[{percent}]", "<= 1.03", ArloCase(DT, percent, "poisson"), DT, mean_ms)
    case = ArloCase(DT, 90, "poisson")
    _claim(report, run, "mean_vs_dt[90]", "<= 0.85", case, DT, mean_ms, "0.708, 0.763")
    _claim(report, run, "p98_vs_dt[90]", "<= 1.05", case, DT, p98_ms, "down to 0.741")
    _claim(report, run, "mean_vs_best_dt[90]", "<= 0.90", case, better_dt(run, case), mean_ms)


def better_dt(run: ArloRun, case: ArloCase) -> str:
    """Return the DT variant with the smaller median of the mean latency over the rounds."""
    return min(
        (DT, DT_BATCHED), key=lambda system: statistics.median(cell.mean_ms for cell in _cells(run, case, system))
    )


def add_ratios(report: Report, run: ArloRun, plan: Sequence[PlannedCase]) -> None:
    """Add the latency ratios of the length-aware systems to ST, or to both DTs, at every load."""
    rows = []
    for planned in plan:
        others = [ST] if planned.case.base == ST else [DT, DT_BATCHED]
        for system in (POLYMORPHIC, PARTITIONED, BIN_PACKING):
            for other in others:
                means = ratios(run, planned.case, system, other, mean_ms)
                tails = ratios(run, planned.case, system, other, p98_ms)
                if means:
                    cells = [
                        f"{statistics.median(each):.3f} ({min(each):.2f}-{max(each):.2f})" for each in (means, tails)
                    ]
                    rows.append([str(planned.case), system, other, *cells])
    columns = ["load", "system", "against", "mean, ratio (range over rounds)", "p98"]
    report.add_table("ratios of latency on the same arrivals, median over rounds", columns, rows)


def ratios(run: ArloRun, case: ArloCase, system: str, other: str, statistic: Statistic) -> list[float]:
    """Return system / other in each round; empty if either was not measured."""
    pairs = zip(_cells(run, case, system), _cells(run, case, other), strict=False)
    return [statistic(ours) / statistic(theirs) for ours, theirs in pairs]


def _claim(
    report: Report,
    run: ArloRun,
    name: str,
    goal: str,
    case: ArloCase,
    other: str,
    statistic: Statistic,
    paper: str | None = None,
) -> None:
    found = ratios(run, case, POLYMORPHIC, other, statistic)
    model = _cells(run, case, other)[0].model
    note = f"{case}; {other} is {model}; rounds {min(found):.2f}-{max(found):.2f}"
    report.claims.append(Claim(name, goal, statistics.median(found), paper=paper, note=note))


def _cells(run: ArloRun, case: ArloCase, system: str) -> list[ArloCell]:
    return [each[str(case)][system] for each in run.cells if system in each[str(case)]]


def _row(run: ArloRun, case: ArloCase, system: str, slo_ms: float) -> list[str]:
    cells = _cells(run, case, system)
    if not cells:
        return ["-", f"saturated at {run.limits[system]:.0f}/s", *[""] * 10]
    requests = sum(len(cell.latencies_ms) + sum(cell.errors.values()) for cell in cells)
    late = sum(_late(cell, slo_ms) for cell in cells)
    medians = [
        statistics.median(values)
        for values in zip(
            *((cell.offered, cell.mean_batch, cell.utilisation, cell.others) for cell in cells), strict=True
        )
    ]
    return [
        str(requests),
        *(f"{value:.1f}" for value in _pooled(cells)),
        f"{late / requests:.1%}",
        str(sum(sum(cell.errors.values()) for cell in cells)),
        f"{medians[0]:.1f}",
        f"{medians[1]:.2f}",
        f"{medians[2]:.0%}",
        f"{medians[3]:.0%}",
        f"{sum(bool(cell.warning) for cell in cells)}/{len(cells)}",
    ]


def _pooled(cells: Sequence[ArloCell]) -> tuple[float, float, float, float]:
    """Mean, p50, p98 and maximum over all rounds' answered requests, in ms."""
    values = np.concatenate([cell.latencies_ms or [float("inf")] for cell in cells])
    p50, p98 = np.percentile(values, (50, 98))
    return float(values.mean()), float(p50), float(p98), float(values.max())


def _late(cell: ArloCell, slo_ms: float) -> int:
    """Number of requests that failed or violated the SLO."""
    return sum(cell.errors.values()) + sum(latency > slo_ms for latency in cell.latencies_ms)


def _summary(cell: ArloCell, slo_ms: float) -> dict[str, object]:
    mean, p50, p98, longest = _pooled([cell])
    return {
        "offered_per_s": cell.offered,
        "answered": len(cell.latencies_ms),
        "errors": cell.errors,
        "mean_ms": mean,
        "p50_ms": p50,
        "p98_ms": p98,
        "max_ms": longest,
        "slo_violations": _late(cell, slo_ms),
        "mean_batch": cell.mean_batch,
        "utilisation": cell.utilisation,
        "others": cell.others,
        "generator_warning": cell.warning,
    }
