"""The figure of the results: throughput by requests in flight, and the tail by load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.encoders.cells import Case
from benchmarks.encoders.claims import CLAIMED, GOALS
from benchmarks.encoders.systems import TIDAL, TIDAL_GRPC
from benchmarks.plots import style

_LABELS = {TIDAL: "Tidal", TIDAL_GRPC: "Tidal, gRPC"}
_TITLES = {
    "embed": "embeddings, all-MiniLM-L6-v2, tweets (higher is better)",
    "rerank": "reranking, documents (higher is better)",
}
_Cells = Mapping[str, Mapping[str, list[Mapping[str, Any]]]]


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    cells: _Cells = document["measured"]["cells"]
    names = list(dict.fromkeys(system for found in cells.values() for system in found))
    colours = style.colours(names, [TIDAL, TIDAL_GRPC])
    figure, (embed, rerank, tail) = style.panels(3)
    for axes, task in ((embed, "embed"), (rerank, "rerank")):
        cases = {count: Case(CLAIMED[task], count).name for count in GOALS}
        _lines(axes, cells, cases, colours, "per_second")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="requests in flight", ylabel="requests per second", title=_TITLES[task])
    shares = {round(100 * share): Case(CLAIMED["embed"], share=share).name for share in (0.4, 0.7, 0.9)}
    _lines(tail, cells, shares, colours, "p99_ms")
    tail.set(xlabel="load, % of the best peer's capacity", ylabel="latency p99, ms")
    tail.set_title("embeddings, random arrivals (lower is better)")
    style.legend(figure, {_LABELS.get(name, name): colour for name, colour in colours.items()})
    style.finish(figure, "Encoders: Tidal and other servers", document["machine"], file)


def _lines(axes: Any, cells: _Cells, cases: Mapping[int, str], colours: Mapping[str, str], figure: str) -> None:
    """Draw a line for each system over the cases that it was measured in."""
    for system, colour in colours.items():
        places = [at for at, case in cases.items() if cells.get(case, {}).get(system)]
        rounds = [[cell[figure] for cell in cells[cases[at]][system]] for at in places]
        if places:
            style.line(axes, places, rounds, colour, _LABELS.get(system, system))
    axes.set_xticks(list(cases), [str(at) for at in cases])
    axes.set(ylim=(0, None))
