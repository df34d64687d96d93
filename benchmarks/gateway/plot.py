"""The figure of the results: latency, requests per second of processor time, tokens per second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gateway.measure import GATEWAY
from benchmarks.plots.bars import Bars, save


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    lone, streams, proxies = measured["lone_ms"], measured["tokens_per_second"], measured["proxies"]
    systems = list(next(iter(lone.values())))
    panels = [
        Bars(
            "one request at a time (lower is better)",
            "median latency, ms",
            list(lone),
            {system: [rounds[system] for rounds in lone.values()] for system in systems},
        ),
        Bars(
            "embeddings, 8 in flight (higher is better)",
            "requests per second of processor time",
            ["before a constant engine"],
            {system: [rounds] for system, rounds in proxies.items()},
        ),
        Bars(
            "32 streams (higher is better)",
            "tokens per second",
            list(streams),
            {system: [rounds[system] for rounds in streams.values()] for system in systems},
            log=True,
        ),
    ]
    save(panels, "The gateway before Triton and before a constant engine", document["machine"], file, tidal=[GATEWAY])
