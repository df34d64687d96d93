"""The figure of the results: answers per second and latency of the routers, by how long devices wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cluster.serve_routers.outcome import LEAST_OUTSTANDING, ROUND_ROBIN, TIDAL
from benchmarks.plots.bars import Bars, save


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    plan = measured["plan"]
    loops = (
        ("closed", "per_second", "answers per second", f"{plan['in_flight']} in flight (higher is better)"),
        ("open", "p50_ms", "p50, ms", f"{plan['rate']:.0f} queries/s (lower is better)"),
    )
    panels = [
        Bars(f"{case}, {what}", unit, [""], {name: [[each[loop][key] for each in of]] for name, of in systems.items()})
        for case, systems in measured["cases"].items()
        for loop, key, unit, what in loops
    ]
    title = "Three nodes on one machine: routers around devices that only wait"
    variants = [ROUND_ROBIN, LEAST_OUTSTANDING]
    save(panels, title, document["machine"], file, tidal=[TIDAL], variants=variants)
