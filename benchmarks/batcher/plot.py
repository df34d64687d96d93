"""The figure of the results: throughput with all requests at once, and latency at other loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots.bars import Bars, save

CAPACITY = "capacity"
#: Name of the load with all requests at once.
SATURATED = "all at once"
_BATCHER = "batcher"


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    loads = [load for load in measured if load not in (CAPACITY, SATURATED)]

    def rounds(cases: list[str], of: Callable[[Any], float]) -> dict[str, list[list[float]]]:
        systems = measured[SATURATED]
        return {
            system: [[of(cell) for cell in measured[case][system]["rounds"]] for case in cases] for system in systems
        }

    def percentile(cell: Any) -> float:
        return float(np.percentile(cell["latencies_ms"], 98))

    panels = [
        Bars(
            "all at once (higher is better)",
            "answers per second",
            [SATURATED],
            rounds([SATURATED], lambda cell: float(cell["per_second"])),
        ),
        Bars(
            "mean latency by load (lower is better)",
            "ms",
            loads,
            rounds(loads, lambda cell: float(np.mean(cell["latencies_ms"]))),
        ),
        Bars("98th percentile by load (lower is better)", "ms", loads, rounds(loads, percentile)),
    ]
    title = "The custom batcher against Triton's dynamic batcher, inputs of 8 to 512 tokens"
    save(panels, title, document["machine"], file, tidal=[_BATCHER])
