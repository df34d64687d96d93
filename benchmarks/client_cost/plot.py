"""The figure of the results: CPU time per call, and calls per second and core."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.client_cost.calls import SYSTEMS
from benchmarks.plots.bars import Bars, save


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    lone, loaded = document["measured"]["one in flight"], document["measured"]["asyncio, 32 in flight"]
    panels = [
        Bars(
            "one call at a time (lower is better)",
            "µs of CPU time per call",
            list(lone),
            {system: [cost[system] for cost in lone.values()] for system in SYSTEMS},
        ),
        Bars(
            "asyncio, 32 in flight (higher is better)",
            "calls per second and core",
            list(loaded),
            {system: [[1e6 / each for each in cost[system]] for cost in loaded.values()] for system in SYSTEMS},
        ),
    ]
    title = "The clients alone: Tidal's and tritonclient, against a server that answers at once"
    save(panels, title, document["machine"], file, tidal=[SYSTEMS[0]])
