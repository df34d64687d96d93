"""The figure of the request path: latency of a lone query by path, and throughput by concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.plots import style

_LABELS = {"bare": "bare Python-backend model", "tidal": "Tidal, backend arlo"}
_PATHS = {
    "in process": "in process",
    "grpc, bare model": "bare model, gRPC",
    "grpc": "Tidal, gRPC",
    "http": "Tidal, HTTP",
}


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    figure, (alone, together) = style.panels(2)
    overhead = document["measured"]["overhead_ms"]
    for place, path in enumerate(_PATHS):
        colour = style.TIDAL if path in ("grpc", "http") else style.PARTS[1]
        style.bars(alone, [place], [overhead[path]], 0.7, colour)
    alone.set_xticks(range(len(_PATHS)), list(_PATHS.values()))
    alone.set(ylabel="latency p50, ms", title="one query of 25 tokens at a time (lower is better)")
    cells = document["measured"]["throughput"]
    for system, colour in style.colours(["bare", "tidal"], ["tidal"]).items():
        rounds = [[each["per_second"] for each in cell[system]] for cell in cells.values()]
        style.line(together, list(map(int, cells)), rounds, colour, _LABELS[system])
    together.set_xscale("log", base=2)
    together.set_xticks(list(map(int, cells)), list(cells))
    together.set(
        xlabel="queries in flight", ylabel="answers per second", title="throughput (higher is better)", ylim=(0, None)
    )
    together.legend()
    style.finish(figure, "Latency added by serving, and throughput", document["machine"], file)
