"""Claims and tables of the measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from benchmarks.report import Claim, Report
from benchmarks.request_path.comparison import BARE, TIDAL, BareComparison, Cells
from benchmarks.request_path.every_system import BEFORE, COMPARED
from benchmarks.request_path.measure import CLIENT, STUB, TRITONSERVER, RequestPathCell, medians

#: Systems that are claimed to be faster than before.
CLAIMED_BEFORE = ("tabi", "pets", "otas", "flover")
Figure = Callable[[RequestPathCell], float]
_COLUMNS = [
    *("model", "in flight", "1/s (range)", "p50 ms", "p99 ms"),
    *("client", "tritonserver", "stub ms", "batch", "cores", "tokens"),
]
#: Goals of throughput with the real engine, by number of requests in flight.
REAL_GOALS = {1: 0.94, 8: 1.0, 64: 1.0}
#: Numbers of requests in flight at which the CPU time of a query is compared.
_CPU_AT = (1, 16, 64)
#: Number of requests in flight at which the tails are compared.
_TAIL_AT = 64


def per_second(cell: RequestPathCell) -> float:
    """Requests per second."""
    return cell.per_second


def ratio(
    figure: Figure, ours: Sequence[RequestPathCell], theirs: Sequence[RequestPathCell], digits: int = 3
) -> tuple[float, str]:
    """Return the median over rounds of one side's figure over the other's, and the range in words."""
    found = [figure(a) / figure(b) for a, b in zip(ours, theirs, strict=True)]
    return round(statistics.median(found), digits), _range(found)


def difference(
    figure: Figure, ours: Sequence[RequestPathCell], theirs: Sequence[RequestPathCell], digits: int = 3
) -> tuple[float, str]:
    """Return the median over rounds of one side's figure minus the other's, and the range in words."""
    found = [figure(a) - figure(b) for a, b in zip(ours, theirs, strict=True)]
    return round(statistics.median(found), digits), _range(found)


def add_free(report: Report, found: BareComparison) -> None:
    """Add the claims with an engine that costs next to nothing."""

    def pair(concurrency: int) -> tuple[list[RequestPathCell], list[RequestPathCell]]:
        return found.cells[concurrency][TIDAL], found.cells[concurrency][BARE]

    for concurrency in (16, 64):
        value, spread = ratio(per_second, *pair(concurrency))
        note = f"{spread}; against {found.best[concurrency].settings}"
        report.claims.append(Claim(f"free_engine_requests_vs_bare[{concurrency}]", ">= 0.9", value, note=note))
    value, spread = difference(lambda cell: cell.p50_ms, *pair(1))
    report.claims.append(Claim("free_engine_added_p50_ms", "<= 0.15", value, note=f"{spread}; over bare, 1 in flight"))
    costs = {at: difference(lambda cell: cell.server_cpu_ms, *pair(at)) for at in _CPU_AT}
    worst = max(costs, key=lambda at: costs[at][0])
    note = f"{costs[worst][1]}; free engine, {worst} in flight, the worst of {', '.join(map(str, _CPU_AT))}"
    report.claims.append(Claim("cpu_ms_per_query_vs_bare", "<= 0.2", costs[worst][0], note=note))
    value, spread = ratio(lambda cell: cell.p99_ms, *pair(_TAIL_AT))
    report.claims.append(Claim(f"p99_vs_bare[{_TAIL_AT}]", "<= 1.2", value, note=f"{spread}; free engine"))
    most = {at: medians(sides[TIDAL]).per_second for at, sides in found.cells.items()}
    best = max(most, key=most.__getitem__)
    report.claims.append(Claim("stub_requests_per_s", "> 0", round(most[best]), note=f"{best} in flight, reported"))
    keep(report, "free", found)


def add_real(report: Report, precision: str, found: BareComparison, *, claimed: bool) -> None:
    """Add the measurements with the real engine, and its claims.

    Args:
        report: Report to add to.
        precision: Precision that the model was built with.
        found: Measurements.
        claimed: Whether this precision is the one that claims are made of.
    """
    if claimed:
        value, spread = difference(lambda cell: cell.p50_ms, found.lone[TIDAL], found.lone[BARE])
        note = f"{spread}; all-MiniLM-L6-v2, 25 tokens"
        report.claims.append(Claim("lone_query_added_over_bare_ms", "<= 0.3", value, note=note))
        for concurrency, goal in REAL_GOALS.items():
            sides = found.cells[concurrency]
            value, spread = ratio(per_second, sides[TIDAL], sides[BARE])
            note = f"{spread}; {precision}, against {found.best[concurrency].settings}"
            report.claims.append(Claim(f"throughput_vs_bare[{concurrency}]", f">= {goal}", value, note=note))
        sides = found.cells[_TAIL_AT]
        value, spread = ratio(lambda cell: cell.p99_ms, sides[TIDAL], sides[BARE])
        note = f"{spread}; all-MiniLM-L6-v2, {precision}"
        report.claims.append(Claim(f"p99_vs_bare[{_TAIL_AT}, real]", "<= 1.2", value, note=note))
    keep(report, precision, found)


def keep(report: Report, name: str, found: BareComparison) -> None:
    """Store a comparison for the JSON and print its table."""
    report.measured[name] = {
        "best": {str(at): asdict(config) for at, config in found.best.items()},
        "cells": {
            str(at): {side: [asdict(cell) for cell in cells] for side, cells in sides.items()}
            for at, sides in found.cells.items()
        },
        "lone": {side: [asdict(cell) for cell in cells] for side, cells in found.lone.items()},
    }
    rows = [row for at, sides in found.cells.items() for row in _rows(sides, str(at))]
    rows += _rows(found.lone, "1, 25 tokens")
    report.add_table(f"{found.engine}: median of the rounds, CPU time per request by process", _COLUMNS, rows)


def keep_system(report: Report, system: str, cells: Cells) -> None:
    """Store the measurements of a system for the JSON."""
    report.measured.setdefault("systems", {})[system] = {
        str(at): {side: [asdict(cell) for cell in every] for side, every in sides.items()}
        for at, sides in cells.items()
    }


def add_systems(report: Report, found: Mapping[str, Cells]) -> None:
    """Add the measurements of all systems with engines that cost next to nothing."""
    rows = []
    for system, cells in found.items():
        keep_system(report, system, cells)
        for at, sides in cells.items():
            rows += [[f"{system}, {row[0]}", *row[1:]] for row in _rows(sides, str(at))]
        sides = cells.get(COMPARED, {})
        if BEFORE in sides and system in CLAIMED_BEFORE:
            value, spread = ratio(per_second, sides[TIDAL], sides[BEFORE])
            claim = Claim(
                f"requests_vs_before[{system}]", ">= 1.8", value, note=f"{spread}; {COMPARED} in flight{_tokens(sides)}"
            )
            report.claims.append(claim)
    title = "all systems, engines that cost next to nothing; of flover parts per second"
    report.add_table(title, _COLUMNS, rows)


def _rows(sides: Mapping[str, Sequence[RequestPathCell]], at: str) -> list[list[str]]:
    rows = []
    for side, cells in sides.items():
        middle = medians(cells)
        speeds = [cell.per_second for cell in cells]
        cpu = [f"{middle.cpu_ms[name]:.2f}" for name in (CLIENT, TRITONSERVER, STUB)]
        rows.append(
            [
                *(side, at, f"{middle.per_second:.0f} ({min(speeds):.0f}-{max(speeds):.0f})"),
                *(f"{middle.p50_ms:.2f}", f"{middle.p99_ms:.1f}", *cpu, f"{middle.mean_batch:.1f}"),
                *(f"{middle.utilisation:.0%}", f"{middle.tokens:.1f}" if middle.tokens else "-"),
            ]
        )
    return rows


def _tokens(sides: Mapping[str, Sequence[RequestPathCell]]) -> str:
    """Return the tokens of a part in words: those that wait to be sent are sent together."""
    found = {side: medians(cells).tokens for side, cells in sides.items()}
    return f"; a part has {found[TIDAL]:.1f} tokens, before {found[BEFORE]:.1f}" if found[TIDAL] else ""


def _range(values: Sequence[float]) -> str:
    return f"rounds {min(values):.2f} to {max(values):.2f}"
