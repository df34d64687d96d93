"""Plot of a run: latency over time, rates, and the latency distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidal_client.load.result import LoadResult
from tidal_client.plot_style import DPI, RED, styled


@styled
def plot(result: LoadResult, file: Path, *, title: str = "", slo_ms: float | None = None) -> None:
    """Save a plot; the file's suffix determines the format.

    Args:
        result: Result of the run.
        file: File to write.
        title: Title of the plot.
        slo_ms: Latency limit to mark, in milliseconds; None: no mark.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    over_time, rates, distribution = figure.subplot_mosaic([["time", "time"], ["rate", "distribution"]]).values()
    latency, answered = result.latency * 1000, result.answered
    for number, variant in enumerate(result.mix):
        chosen = answered & (result.variants == number)
        label = variant.name if len(result.mix) > 1 else "answered"
        over_time.plot(result.scheduled[chosen], latency[chosen], ".", markersize=3, alpha=0.6, label=label)
        if chosen.any():
            ranked = np.sort(latency[chosen])
            distribution.plot(ranked, np.arange(1, len(ranked) + 1) / len(ranked), label=label)
    if not answered.all():
        over_time.plot(result.scheduled[~answered], latency[~answered], "x", color=RED, markersize=4, label="failed")
    if slo_ms is not None:
        over_time.axhline(slo_ms, color="black", linewidth=0.8, linestyle="--", label=f"SLO {slo_ms:g} ms")
        distribution.axvline(slo_ms, color="black", linewidth=0.8, linestyle="--")
    over_time.set(xlabel="scheduled time, s", ylabel="latency, ms", title=title)
    over_time.set_yscale("log")
    over_time.legend(loc="upper right", fontsize="small")
    bins = np.linspace(0, max(result.duration, 1e-9), 61)
    for times, label in ((result.scheduled, "offered"), (result.done[answered], "answered")):
        counts, _ = np.histogram(times, bins)
        rates.stairs(counts / np.diff(bins), bins, label=label)
    rates.set(xlabel="time, s", ylabel="requests per second")
    rates.legend(fontsize="small")
    distribution.set(xlabel="latency, ms", ylabel="share of responses", ylim=(0, 1))
    distribution.set_xscale("log")
    figure.savefig(file, dpi=DPI)
