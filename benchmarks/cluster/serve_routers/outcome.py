"""Tables and claims of the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.cluster.serve_routers.processor import PARTS
from benchmarks.cluster.serve_routers.rounds import Cell, Plan, Round
from benchmarks.report import Claim, Report

TIDAL, ROUND_ROBIN, LEAST_OUTSTANDING = "Tidal", "round robin", "least outstanding"
RAY, HAPROXY = "Ray Serve, its router", "Ray Serve, HAProxy"
_PEERS = {RAY: "router", HAPROXY: "HAProxy"}
_P50_GOAL, _THROUGHPUT_GOAL = "<= 0.3", ">= 4"


def add_case(report: Report, case: str, rounds: Sequence[Round], plan: Plan) -> None:
    """Add the tables and claims of a case.

    Args:
        report: Report to add to.
        case: Name of the case.
        rounds: Its rounds.
        plan: Rounds, loads and their lengths.
    """
    names = list(rounds[0])
    closed = {name: [each[name][0] for each in rounds] for name in names}
    open_ = {name: [each[name][1] for each in rounds] for name in names}
    speeds = {name: _ratios(closed, name, lambda cell: cell.per_second) for name in names}
    latencies = {name: _ratios(open_, name, lambda cell: cell.p50_ms) for name in names}
    _add_table(report, f"{case}: answers per second, {plan.in_flight} in flight", closed, speeds, _speed)
    _add_table(report, f"{case}: latency at {plan.rate:.0f} queries/s, Poisson arrivals", open_, latencies, _latency)
    for peer, short in _PEERS.items():
        if peer not in names:
            continue
        sent = f"{written(latencies[peer])}; {plan.rate:.0f} queries/s; rounds: {len(rounds)}"
        value = statistics.median(latencies[peer])
        report.claims.append(Claim(f"vs_ray_serve_p50[{short}, {case}]", _P50_GOAL, value, note=sent))
        sent = f"{written(speeds[peer])}; {plan.in_flight} in flight; rounds: {len(rounds)}"
        value = statistics.median(speeds[peer])
        report.claims.append(Claim(f"vs_ray_serve_throughput[{short}, {case}]", _THROUGHPUT_GOAL, value, note=sent))
    report.measured.setdefault("cases", {})[case] = {
        name: [{"closed": each[name][0].kept(), "open": each[name][1].kept()} for each in rounds] for name in names
    }


def written(values: Sequence[float], digits: int = 2) -> str:
    """Return the median with the range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _add_table(
    report: Report,
    title: str,
    cells: Mapping[str, Sequence[Cell]],
    ratios: Mapping[str, Sequence[float]],
    figures: Callable[[Sequence[Cell]], str],
) -> None:
    rows = []
    for name, of in cells.items():
        shares = [
            *([each.processor.parts[part] for each in of] for part in PARTS),
            [each.processor.sender for each in of],
            [each.processor.others for each in of],
        ]
        rows.append(
            [
                name,
                figures(of),
                "-" if name == TIDAL else written(ratios[name]),
                str(sum(each.failed for each in of)),
                f"{statistics.median(each.cpu_ms for each in of):.2f}",
                *(f"{statistics.median(values):.0%}" for values in shares),
            ]
        )
    columns = ["system", "medians (range)", "Tidal's / its", "failed", "CPU ms"]
    report.add_table(f"{title}; shares of the cores", [*columns, *PARTS, "sender", "others"], rows)


def _speed(cells: Sequence[Cell]) -> str:
    return written([each.per_second for each in cells], 0)


def _latency(cells: Sequence[Cell]) -> str:
    return f"p50 {written([each.p50_ms for each in cells])}, p98 {statistics.median(c.p98_ms for c in cells):.1f}"


def _ratios(cells: Mapping[str, Sequence[Cell]], name: str, figure: Callable[[Cell], float]) -> list[float]:
    """Return Tidal's figure over that of a system, by round."""
    return [figure(a) / max(figure(b), 1e-9) for a, b in zip(cells[TIDAL], cells[name], strict=True)]
