"""The benchmark's plot: latency by load, a line a system."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from benchmarks.arlo.systems import DT, ST, Planned
from benchmarks.report import Report, machine_line


def save(report: Report, plan: list[Planned], file: Path) -> None:
    """Draw mean and p98 by load into a PNG, a column for each arrival pattern and capacity that loads refer to."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = [
        (base, pattern)
        for base in (ST, DT)
        for pattern in ("poisson", "bursty")
        if any((planned.case.base, planned.case.pattern) == (base, pattern) for planned in plan)
    ]
    figure, axes = pyplot.subplots(2, len(columns), figsize=(4.2 * len(columns), 7), squeeze=False)
    for column, (base, pattern) in enumerate(columns):
        lines = _lines(report, plan, base, pattern)
        for row, statistic in enumerate(("mean_ms", "p98_ms")):
            each = axes[row][column]
            for system, points in lines.items():
                each.plot(list(points), [point[statistic] for point in points.values()], marker="o", label=system)
            each.set_yscale("log")
            each.set_xticks(sorted({percent for points in lines.values() for percent in points}))
            each.set_ylabel(f"{statistic.removesuffix('_ms')} latency, ms")
            each.set_xlabel(f"load, % of {base}'s capacity")
            each.set_title(f"{pattern} arrivals")
            each.grid(alpha=0.3, which="both")
        axes[0][column].legend(fontsize=8)
    figure.suptitle(textwrap.fill(machine_line(), 60 * len(columns)), fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _lines(report: Report, plan: list[Planned], base: str, pattern: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Pooled statistics by system and percentage."""
    lines: dict[str, dict[int, dict[str, Any]]] = {}
    for planned in plan:
        if (planned.case.base, planned.case.pattern) == (base, pattern):
            for system, cell in report.measured["cells"][str(planned.case)].items():
                lines.setdefault(system, {})[planned.case.percent] = cell["all"]
    return lines
