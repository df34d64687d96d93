"""The figure of the request path: requests per second and tail with the free and real engine, and all systems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.plots import style

_LABELS = {
    "tidal": "Tidal, backend arlo",
    "bare": "best bare Python-backend model",
    "bare, senders": "the same, with response senders",
    "bare, thread": "the same, with response senders on a thread",
}
_SYSTEM_LABELS = {"tidal": "Tidal", "before": "an earlier commit"}


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    figure, (requests, tail, real, systems) = style.panels(2, 2)
    free, fp32 = measured["free"]["cells"], measured["fp32"]["cells"]
    _lines(requests, free, "per_second")
    requests.set(ylabel="requests per second", title="an engine that costs next to nothing (higher is better)")
    requests.legend()
    _lines(tail, free, "p99_ms")
    tail.set(ylabel="latency p99, ms", title="its tail (lower is better)")
    _lines(real, fp32, "per_second")
    real.set(ylabel="requests per second", title="all-MiniLM-L6-v2, 8 to 200 tokens (higher is better)")
    _systems(systems, measured.get("systems", {}))
    style.finish(figure, "Cost of the request path", document["machine"], file)


def _lines(axes: Any, cells: Mapping[str, Mapping[str, Any]], figure: str) -> None:
    names = dict.fromkeys(side for sides in cells.values() for side in sides)
    for side, colour in style.colours(list(names), ["tidal"]).items():
        places = [at for at, sides in cells.items() if side in sides]
        rounds = [[cell[figure] for cell in cells[at][side]] for at in places]
        style.line(axes, list(map(int, places)), rounds, colour, _LABELS[side])
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(map(int, cells)), list(cells))
    axes.set(xlabel="requests in flight", ylim=(0, None))


def _systems(axes: Any, systems: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Bars of every system at 64 in flight, beside the earlier commit's where it was measured."""
    from matplotlib.patches import Patch

    if not systems:
        axes.set_axis_off()
        axes.set_title("tiny models of all systems: not measured in this run")
        return
    sides = [side for side in ("tidal", "before") if any(side in cells["64"] for cells in systems.values())]
    width = 0.8 / max(1, len(sides))
    for number, (side, colour) in enumerate(style.colours(sides, ["tidal"]).items()):
        shown = [(place, cells["64"][side]) for place, cells in enumerate(systems.values()) if side in cells["64"]]
        places = [place - 0.4 + (number + 0.5) * width for place, _ in shown]
        rounds = [[cell["per_second"] for cell in every] for _, every in shown]
        style.bars(axes, places, rounds, width, colour)
    axes.set_xticks(range(len(systems)), [name.replace(" ", "\n") for name in systems])
    title = "tiny models of all systems, 64 in flight (higher is better)"
    axes.set(ylabel="requests (flover: parts) per second", title=title)
    colours = style.colours(sides, ["tidal"])
    axes.legend(handles=[Patch(color=colour, label=_SYSTEM_LABELS[side]) for side, colour in colours.items()])
