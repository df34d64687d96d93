"""Figure of the simulated clusters: latencies of the systems, and GPUs over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cluster.simulated import figures
from benchmarks.plots import style
from tidal.simulator.arlo import ClusterResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = {
    "arlo": "Arlo, as Tidal serves",
    "global": "best fixed allocation",
    "even": "equal numbers",
    "dt": "one dynamic runtime (DT)",
    "infaas": "INFaaS",
    "st": "padded (ST)",
}
_COLOURS = style.colours(list(_LABELS), ["arlo"], ["global", "even"])
_BASE, _LARGE = figures.FIGURE_10
#: Settings whose latencies are drawn, with the titles of their panels.
DRAWN = {
    _BASE.title: "latency, Bert-Base on 90 GPUs",
    _LARGE.title: "latency, Bert-Large on 300 GPUs",
    figures.FIGURE_8.title: "latency, Bert-Large, autoscaled from 5 GPUs",
    figures.TABLE_3.title: "latency, Bert-Large on 40 GPUs, lengths drift",
}
_SHARES = np.linspace(0, 1, 201)
_MOMENTS = 300


def series(results: Mapping[str, ClusterResult]) -> dict[str, Any]:
    """Return what the figure needs of a setting's results, by system, as kept in JSON.

    Returns:
        For each system `latency_ms`, latencies at 201 equally spaced shares of the requests. Where they change,
        `gpus`, the number of GPUs, and `instances`, GPUs by the runtime's `max_length`, both at the times `at_s`.
    """
    kept: dict[str, Any] = {}
    for name, result in results.items():
        moments = result.moments[:: -(-len(result.moments) // _MOMENTS)]
        found: dict[str, Any] = {
            "latency_ms": np.quantile(result.latencies_s * 1e3, _SHARES).round(3).tolist(),
            "at_s": [each.at for each in moments],
        }
        if len({each.gpus for each in moments}) > 1:
            found["gpus"] = [each.gpus for each in moments]
        elif len({each.instances for each in moments}) > 1:
            counts = zip(*(each.instances for each in moments), strict=True)
            found["instances"] = dict(zip(map(str, result.max_lengths), map(list, counts), strict=True))
        else:
            del found["at_s"]
        kept[name] = found
    return kept


@style.styled
def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the results as kept in JSON.

    Args:
        document: Content of the JSON file.
        file: PNG or SVG to write.
    """
    measured = document["measured"]
    kept = measured["series"]
    figure, panels = style.panels(3, 2, width=4.8, height=3.0)
    settings = {each.title: each for each in (*figures.FIGURE_10, figures.FIGURE_8, figures.TABLE_3)}
    for axes, (setting, title) in zip(panels, DRAWN.items(), strict=False):
        means = {name: found["mean_ms"] for name, found in measured[setting].items()}
        _latencies(axes, kept[setting], means, settings[setting].stream.slo_s * 1e3)
        axes.set_title(title)
    _gpus(panels[4], kept[figures.FIGURE_8.title])
    _instances(panels[5], kept[figures.TABLE_3.title]["arlo"])
    title = "Simulated clusters: latency of a request by system (further left is better), and GPUs over time"
    style.finish(figure, title, document["machine"], file)


def _latencies(axes: Axes, systems: Mapping[str, Any], means: Mapping[str, float], slo_ms: float) -> None:
    for name, colour in _COLOURS.items():
        if name in systems:
            label = f"{_LABELS[name]}, mean {style.written(means[name])} ms"
            axes.plot(systems[name]["latency_ms"], _SHARES * 100, color=colour, label=label)
    axes.axvline(slo_ms, color="#24292f", linewidth=0.8, linestyle="--", label=f"objective, {slo_ms:g} ms")
    axes.set(xlabel="latency, ms", ylabel="% of requests", ylim=(0, 101), xscale="log")
    axes.legend()


def _gpus(axes: Axes, systems: Mapping[str, Any]) -> None:
    for name, colour in _COLOURS.items():
        if "gpus" in systems.get(name, {}):
            minutes = np.array(systems[name]["at_s"]) / 60
            axes.step(minutes, systems[name]["gpus"], where="post", color=colour, label=_LABELS[name], linewidth=1.0)
    axes.set(xlabel="time, min", ylabel="GPUs", ylim=(0, None), title="GPUs, autoscaled from 5 (fewer is better)")
    axes.legend(ncols=2)


def _instances(axes: Axes, found: Mapping[str, Any]) -> None:
    from matplotlib import colormaps

    if "instances" not in found:  # short runs have no reason to change them
        axes.set_title("GPUs by runtime: unchanged")
        return
    counts = found["instances"]
    shades = colormaps["Greys_r"](np.linspace(0.05, 0.85, len(counts)))
    labels = [f"{max_length} tokens" for max_length in counts]
    axes.stackplot(np.array(found["at_s"]) / 60, *counts.values(), labels=labels, step="post", colors=shades)
    axes.set(xlabel="time, min", ylabel="GPUs", title="Arlo's GPUs by runtime, on 40 GPUs while lengths drift")
    axes.legend(ncols=2, loc="lower right", frameon=True)
