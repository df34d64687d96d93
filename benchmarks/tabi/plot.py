"""The benchmark's plot: Figure 7's latencies by task, and the sweeps of Figures 8 and 9."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine_line
from benchmarks.tabi.outcome import TaskOutcome
from benchmarks.tabi.sweeps import SweepPoint

_WIDTH = 4.2


def save(
    file: Path,
    outcomes: Sequence[TaskOutcome],
    cutoffs: Mapping[str, Sequence[SweepPoint]],
    scales: Mapping[str, Sequence[SweepPoint]],
) -> None:
    """Plot one column per task: latencies by system (1, 25, 50, 75 and 99 %), then c, then α.

    Args:
        file: PNG to write.
        outcomes: Results of all tasks.
        cutoffs: Sweep over the cut-off, by task.
        scales: Sweep over the pruning scale, by task.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, len(outcomes), figsize=(_WIDTH * len(outcomes), 11), squeeze=False)
    for column, outcome in enumerate(outcomes):
        boxes, names = [], []
        for system in outcome.run.serial[0]:
            values = np.concatenate([each[system].latencies_ms for each in outcome.run.serial])
            low, p25, p50, p75, high = np.percentile(values, (1, 25, 50, 75, 99)).tolist()
            names.append(system)
            boxes.append({"whislo": low, "q1": p25, "med": p50, "q3": p75, "whishi": high, "label": system})
        top = axes[0][column]
        top.bxp(boxes, showfliers=False, orientation="horizontal")
        top.invert_yaxis()
        top.tick_params(axis="y", labelsize=7)
        top.set_xlabel("latency, ms")
        top.set_title(outcome.name)
        _lines(axes[1][column], cutoffs.get(outcome.name, ()), "cut-off c", "all queries")
        _lines(axes[2][column], scales.get(outcome.name, ()), "pruning scale α", "large level, re-routed queries")
    figure.suptitle(textwrap.fill(machine_line(), 50 * len(outcomes)), fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _lines(axis: Any, points: Sequence[SweepPoint], label: str, what: str) -> None:
    """Plot accuracy on the left axis and mean latency on the right one."""
    names = [point.name for point in points]
    axis.plot(names, [100 * point.accuracy for point in points], marker="o", color="C0")
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylabel("accuracy, %", color="C0")
    axis.set_xlabel(f"{label} ({what})")
    other = axis.twinx()
    other.plot(names, [point.mean_ms for point in points], marker="s", color="C1")
    other.set_ylabel("mean latency, ms", color="C1")
