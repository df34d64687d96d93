"""The figure of latency by load: a column for each arrival pattern and reference system, a line for each system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.arlo.systems import BASELINES, BIN_PACKING, DT, PARTITIONED, POLYMORPHIC, ST
from benchmarks.plots import style

_SYSTEMS = (POLYMORPHIC, PARTITIONED, BIN_PACKING, *BASELINES)
_STATISTICS = {"mean_ms": "mean latency, ms", "p98_ms": "98th percentile of latency, ms"}


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    cases: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for name, cell in document["measured"]["cells"].items():
        found = re.fullmatch(r"(\d+) % of (\S+), (\w+)", name)
        assert found is not None, name
        cases.setdefault((found[2], found[3]), {})[int(found[1])] = cell
    columns = [key for base in (ST, DT) for pattern in ("poisson", "bursty") if (key := (base, pattern)) in cases]
    shown = {system for of_case in cases.values() for cell in of_case.values() for system in cell}
    colours = style.colours([system for system in _SYSTEMS if system in shown], [POLYMORPHIC], [PARTITIONED])
    figure, panels = style.panels(len(columns), len(_STATISTICS))
    for row, (statistic, unit) in enumerate(_STATISTICS.items()):
        for column, (base, pattern) in enumerate(columns):
            axes, of_case = panels[row * len(columns) + column], cases[base, pattern]
            for system, colour in colours.items():
                loads = [load for load in of_case if system in of_case[load]]
                rounds = [[each[statistic] for each in of_case[load][system]["rounds"]] for load in loads]
                if loads:
                    style.line(axes, loads, rounds, colour, system)
            axes.set_xticks(list(of_case))
            arrivals = "Poisson" if pattern == "poisson" else pattern
            axes.set(yscale="log", xlabel=f"load, % of {base}'s capacity", ylabel=unit, title=f"{arrivals} arrivals")
    style.legend(figure, colours)
    title = "Latency by load, inputs of 4 to 512 tokens (lower is better)"
    style.finish(figure, title, document["machine"], file)
