"""The figure of cascades: latencies by task (Figure 7), and the sweeps of cut-off and pruning (Figures 8 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import style
from benchmarks.tabi.figures import PERCENTILES
from benchmarks.tabi.variants import TABI


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document: a column for each task, latencies by system, then c, then α."""
    measured = document["measured"]
    tasks: Mapping[str, Any] = measured["tasks"]
    figure, panels = style.panels(len(tasks), 3, height=3.6)
    names = list(dict.fromkeys(name for task in tasks.values() for name in task["systems"]))
    variants = [name for name in names if name.startswith(TABI) and name != TABI]
    colours = dict.fromkeys(variants, "#80ccff") | style.colours([n for n in names if n not in variants], [TABI])
    colours = {name: colours[name] for name in (TABI, *variants, *colours) if name in colours}
    for column, (task, found) in enumerate(tasks.items()):
        _latencies(panels[column], found["systems"], colours)
        panels[column].set_title(f"{task}: latency (lower is better)")
        cutoffs, scales = measured["cutoffs"].get(task, ()), measured["scales"].get(task, ())
        _sweep(panels[len(tasks) + column], cutoffs, "cut-off c, all queries")
        _sweep(panels[2 * len(tasks) + column], scales, "pruning scale α, re-routed queries at the large level")
    title = (
        "Cascades, their parts and single models on four tasks: box: 25th to 75th percentile, white: median, line: 99th"
    )
    style.finish(figure, title, document["machine"], file)


def _latencies(axes: Any, systems: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    shown = [name for name in colours if name in systems]
    boxes = []
    for name in shown:
        low, middle, high, highest = systems[name]["percentiles_ms"]
        assert len(PERCENTILES) == 4
        boxes.append({"whislo": low, "q1": low, "med": middle, "q3": high, "whishi": highest, "label": name})
    drawn = axes.bxp(
        boxes, showfliers=False, orientation="horizontal", patch_artist=True, medianprops={"color": "white"}
    )
    for box, name in zip(drawn["boxes"], shown, strict=True):
        box.set(facecolor=colours[name], edgecolor=colours[name])
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set(xlabel="ms", xlim=(0, None))


def _sweep(axes: Any, points: Sequence[Mapping[str, Any]], label: str) -> None:
    """Accuracy on the left axis, mean latency on the right."""
    names = [point["name"] for point in points]
    axes.plot(names, [100 * point["accuracy"] for point in points], marker="o", color=style.PARTS[0], label="accuracy")
    axes.set(ylabel="accuracy, %", xlabel=label)
    axes.tick_params(axis="x", labelsize=6)
    other = axes.twinx()
    other.grid(visible=False)
    other.plot(names, [point["mean_ms"] for point in points], marker="s", color=style.PARTS[2], label="mean latency")
    other.set(ylabel="mean latency (grey), ms", ylim=(0, None))
