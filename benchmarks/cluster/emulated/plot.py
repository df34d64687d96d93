"""The figure of the results: latencies of the systems on emulated devices, and of one and four entrances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = {
    "arlo": "Arlo",
    "earliest": "completion",
    "dt_1.22": "DT 1.22",
    "dt_1.54": "DT 1.54",
    "infaas": "INFaaS",
    "st": "ST",
}
_COLOURS = style.colours(list(_LABELS), ["arlo"], ["earliest"])


@style.styled
def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    settings, rates, entrances = measured["settings"], measured.get("rates", {}), measured.get("entrances", {})
    figure, panels = style.panels(len(settings) + bool(rates) + bool(entrances), width=4.2)
    for axes, (title, systems) in zip(panels, settings.items(), strict=False):
        _latencies(axes, title.partition(": ")[2], systems)
    if rates:
        _rates(panels[len(settings)], rates)
    if entrances:
        _entrances(panels[-1], entrances)
    title = f"Arlo's testbed on real servers whose devices wait; all times were stretched {measured['stretch']:g} times"
    style.finish(figure, title, document["machine"], file)


def _latencies(axes: Axes, title: str, systems: Mapping[str, Any]) -> None:
    for at, (name, rounds) in enumerate(systems.items()):
        for offset, key in ((-0.2, "mean_ms"), (0.2, "p98_ms")):
            style.bars(axes, [at + offset], [[each[key] for each in rounds]], 0.36, _COLOURS[name])
        for offset, key in ((-0.2, "simulated_mean_ms"), (0.2, "simulated_p98_ms")):
            axes.plot([at + offset], [sum(each[key] for each in rounds) / len(rounds)], marker="_", color="black")
    axes.set_xticks(range(len(systems)), [_LABELS[name] for name in systems])
    axes.set(ylabel="mean and p98, ms", yscale="log", title=f"{title}; lines: simulated")


def _rates(axes: Axes, rates: Mapping[str, Any]) -> None:
    places = [float(rate) for rate in rates]
    measured = next(iter(rates.values()))
    for name, label in ((each, label) for each, label in _LABELS.items() if each in measured):
        style.line(axes, places, [[each[name]["mean_ms"]] for each in rates.values()], _COLOURS[name], label)
    axes.set(xlabel="queries per second", ylabel="mean, ms", yscale="log", title="Bert-Base, 10 devices")
    axes.legend()


def _entrances(axes: Axes, found: Mapping[str, Any]) -> None:
    rounds = [[each["mean_ms"] for each in row] for row in found.values()]
    style.bars(axes, range(len(found)), rounds, 0.6, style.TIDAL)
    axes.set_xticks(range(len(found)), [f"{number} of 4" for number in found])
    axes.set(xlabel="entrances", ylabel="mean, ms", title="four servers (lower is better)")
