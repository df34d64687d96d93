"""Plots of runs: latency distribution, and GPUs by runtime over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tidal.simulator.arlo.result import ClusterResult
from tidal.simulator.arlo.systems import SystemName
from tidal.simulator.requests import Floats
from tidal_client.plot_style import DPI, OTHERS, TIDAL, VARIANTS, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 2000
#: A system has the same colour whichever others are shown: Arlo and what changes a part of it are blue.
_COLOURS: dict[str, str] = {
    SystemName.ARLO: TIDAL,
    SystemName.EARLIEST: "#0550ae",
    **dict(zip((SystemName.GLOBAL, SystemName.EVEN, SystemName.ILB, SystemName.IG), VARIANTS, strict=True)),
    **dict(zip((SystemName.DT, SystemName.INFAAS, SystemName.ST, SystemName.POLYMORPHIC), OTHERS, strict=False)),
}


@styled
def plot(results: Sequence[ClusterResult], file: Path, *, title: str = "", slo_s: float | None = None) -> None:
    """Save a plot as in Arlo's Figures 6 and 10 (top), and 8 or 12 (bottom); the file's suffix determines the format.

    GPUs by runtime are shown for the first result with several runtimes, the number of GPUs if it varies.

    Args:
        results: Results to compare.
        file: File to write.
        title: Title of the plot.
        slo_s: Latency objective to mark, in seconds; None: no mark.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    distribution, over_time = figure.subplots(2, 1)
    shares = np.linspace(0, 1, _POINTS)
    for result in results:
        if len(result.latencies_s):
            label = f"{result.name}, mean {result.mean_ms:.1f} ms"
            latencies_ms = np.quantile(result.latencies_s, shares) * 1e3
            distribution.plot(latencies_ms, shares * 100, label=label, color=_COLOURS.get(result.name))
    if slo_s is not None:
        distribution.axvline(slo_s * 1e3, color="black", linewidth=0.8, linestyle="--", label=f"SLO {slo_s * 1e3:g} ms")
    distribution.set(xlabel="latency, ms", ylabel="% of requests", ylim=(0, 101), xscale="log", title=title)
    distribution.legend(fontsize="small")
    _gpus(over_time, results)
    figure.savefig(file, dpi=DPI)


def _gpus(axes: Axes, results: Sequence[ClusterResult]) -> None:
    from matplotlib import colormaps

    several = [result for result in results if len(result.max_lengths) > 1 and any(result.moments[0].instances)]
    if several:
        shown = several[0]
        minutes = [each.at / 60 for each in shown.moments]
        counts = list(zip(*(each.instances for each in shown.moments), strict=True))
        labels = [f"{shown.name}: {max_length} tokens" for max_length in shown.max_lengths]
        axes.stackplot(minutes, *counts, labels=labels, step="post", colors=colormaps["Greys_r"](_spread(len(labels))))
    for result in results:
        gpus = [each.gpus for each in result.moments]
        if len(set(gpus)) > 1:
            minutes = [each.at / 60 for each in result.moments]
            colour = _COLOURS.get(result.name)
            axes.step(minutes, gpus, where="post", linestyle="--", label=f"{result.name}: total", color=colour)
    axes.set(xlabel="time, min", ylabel="GPUs", ylim=(0, None))
    if several or axes.lines:
        axes.legend(fontsize="small", ncols=3)


def _spread(number: int) -> Floats:
    return np.linspace(0.05, 0.85, number)
