"""Plots that a build publishes with its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidal_builders.arlo.choices import Curve
from tidal_client.plot_style import DPI, GREY, styled


@styled
def plot_curve(curve: Curve, lengths: Sequence[int], title: str, path: Path) -> None:
    """Plot latency by input length, with the chosen runtimes' lengths as vertical lines.

    Args:
        curve: Measured latencies.
        lengths: Lengths of the runtimes in tokens.
        title: Title of the plot.
        path: PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if curve.static_ms is not None:
        axes.plot(curve.lengths, curve.static_ms, marker=".", label="static runtime of this length")
    axes.plot(curve.lengths, curve.dynamic_ms, marker=".", label="one dynamic runtime")
    for number, length in enumerate(lengths):
        axes.axvline(length, color=GREY, linewidth=0.8, linestyle=":", label=None if number else "chosen lengths")
    axes.set(xlabel="input length, tokens", ylabel="latency of one query, ms", title=title, ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=DPI)
