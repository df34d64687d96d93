"""The plot of what was measured: medians of the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.bars import Bars, save

CAPACITY = "capacity"


def plot(measured: Mapping[str, Any], saturated: str, file: Path) -> None:
    """Draw answers a second where all come at once, and latency at the other loads.

    Args:
        measured: of the report.
        saturated: name of the load at which all come at once.
        file: the PNG.
    """
    loads = [load for load in measured if load not in (CAPACITY, saturated)]

    def figures(cases: list[str], of: Callable[[Any], float]) -> dict[str, list[float]]:
        systems = measured[saturated]
        return {
            system: [median(of(cell) for cell in measured[case][system]["rounds"]) for case in cases]
            for system in systems
        }

    def percentile(cell: Any) -> float:
        return float(np.percentile(cell["latencies_ms"], 98))

    panels = [
        Bars("all at once", "answers/s", [saturated], figures([saturated], lambda cell: float(cell["per_second"]))),
        Bars("mean latency by load", "ms", loads, figures(loads, lambda cell: float(np.mean(cell["latencies_ms"])))),
        Bars("98th percentile by load", "ms", loads, figures(loads, percentile)),
    ]
    save(panels, file)
