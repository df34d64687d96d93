"""The figure of the results: latency and instances while nodes are lost and join, and the cost of several entrances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cluster.simulated.inputs import MAX_LENGTHS
from benchmarks.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: How entrances dispatch; the first is what serves.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "nodes are assigned to entrances": {},
    "other nodes are no entrances": {"all_entrances": False},
    "nothing is assigned": {"affinity": False},
    "others' queries every 100 ms": {"exchange_s": 0.1},
    "others' queries every 20 ms": {"exchange_s": 0.02},
}
SERVED, GIVEN_BACK = list(WAYS)[:2]


@style.styled
def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    cases = [
        (cluster, load, cells) for cluster, loads in measured["entrances"].items() for load, cells in loads.items()
    ]
    figure, panels = style.panels(-(-(2 + len(cases)) // 2), 2, width=4.2)
    _latency(panels[0], measured["losses"])
    _instances(panels[1], measured["losses"])
    for axes in panels[2 + len(cases) :]:
        axes.remove()
    for axes, (cluster, load, cells) in zip(panels[2:], cases, strict=False):
        _entrances(axes, f"{cluster}, load {float(load):.0%}", cells)
    title = "1,000 simulated devices on 125 nodes: nodes join and are lost under load; several entrances"
    style.finish(figure, title, document["machine"], file)


def _mark(axes: Axes, losses: Mapping[str, Any]) -> None:
    """Mark when nodes are lost and when they join."""
    for at in sorted({each["at_s"] for each in losses["outages"] if each["at_s"]}):
        axes.axvline(at, color="#cf222e", linewidth=0.8, linestyle="--")
    for at in sorted({each["at_s"] + each["start_s"] for each in losses["outages"]}):
        axes.axvline(at, color="#1a7f37", linewidth=0.8, linestyle=":")


def _latency(axes: Axes, losses: Mapping[str, Any]) -> None:
    found = losses["timeline"]
    seconds = np.arange(len(found["p50_ms"]))
    axes.plot(seconds, found["p98_ms"], color=style.PARTS[2], linewidth=1.0, label="p98")
    axes.plot(seconds, found["p50_ms"], color=style.TIDAL, linewidth=1.0, label="median")
    _mark(axes, losses)
    title = f"latency at {losses['load']:.0%} load; dashed: nodes are lost, dotted: they serve"
    axes.set(xlabel="arrival, s", ylabel="latency, ms", yscale="log", title=title)
    axes.legend()


def _instances(axes: Axes, losses: Mapping[str, Any]) -> None:
    from matplotlib import colormaps

    counts = list(zip(*losses["timeline"]["instances"], strict=True))
    shades = colormaps["Greys_r"](np.linspace(0.05, 0.85, len(counts)))
    labels = [f"{length} tokens" for length in MAX_LENGTHS]
    seconds = np.arange(1, len(counts[0]) + 1)
    axes.stackplot(seconds, *counts, labels=labels, step="post", colors=shades)
    _mark(axes, losses)
    axes.set(xlabel="time, s", ylabel="instances", title="instances that serve, by runtime")
    axes.legend(ncols=2, loc="lower right", frameon=True)


def _entrances(axes: Axes, case: str, cells: Mapping[str, Any]) -> None:
    ones = [each["mean_ms"] for each in cells["1"]]
    for name, colour in style.colours(list(WAYS), [SERVED]).items():
        numbers = [int(cell.partition(",")[0]) for cell in cells if cell.endswith(f", {name}")]
        rounds = [[1.0] * len(ones)]
        for number in numbers:
            found = cells[f"{number}, {name}"]
            rounds.append([each["mean_ms"] / one for each, one in zip(found, ones, strict=True)])
        style.line(axes, [1, *numbers], rounds, colour, name)
    axes.set(xlabel="entrances", ylabel="one entrance = 1", title=f"mean latency (lower is better): {case}")
    axes.legend()
