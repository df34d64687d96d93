"""Plots of a search: candidates, and the reliability of the levels' confidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidal.tabi.selection import reference
from tidal_builders.tabi.pareto import pareto_front
from tidal_builders.tabi.search_report import SearchReport
from tidal_client.plot_style import DPI, GREY, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def plot_candidates(report: SearchReport, path: Path) -> None:
    """Plot score against mean latency on the report part, by combination of levels; the chosen one is marked.

    Args:
        report: Report of the search.
        path: Image file to write.
    """
    figure = _figure(8, 5)
    axes: Axes = figure.subplots()
    combinations = sorted({each.levels for each in report.candidates}, key=lambda levels: (len(levels), levels))
    for levels in combinations:
        points = [each.reported for each in report.candidates if each.levels == levels]
        axes.plot(
            [each.latency.mean for each in points],
            [each.score for each in points],
            linestyle="none",
            marker="s" if len(levels) == 1 else ".",
            label=" → ".join(report.levels[level].name for level in levels),
        )
    best = [report.candidates[index].reported for index in pareto_front(report.candidates)]
    axes.plot(
        [each.latency.mean for each in best],
        [each.score for each in best],
        color=GREY,
        linewidth=0.8,
        zorder=1,
        label="Pareto front of the selection part",
    )
    if report.chosen is not None:
        chosen = report.candidates[report.chosen].reported
        axes.plot(
            chosen.latency.mean, chosen.score, "o", markersize=14, fillstyle="none", color="black", label="chosen"
        )
    least = report.target.accuracy
    if report.target.accuracy_loss is not None:
        least = reference(report.candidates).reported.score - report.target.accuracy_loss
    if least is not None:
        axes.axhline(least, color=GREY, linewidth=0.8, linestyle=":", label="target")
    if report.target.latency_ms is not None:
        axes.axvline(report.target.latency_ms, color=GREY, linewidth=0.8, linestyle=":", label="target")
    # A target far beyond all candidates must not compress the axis.
    slowest = max(each.reported.latency.mean for each in report.candidates)
    served = "served" if report.serving is not None else "engines alone"
    axes.set(
        xlabel=f"mean latency of one query ({served}), ms",
        ylabel=f"{report.metric}, report part",
        xlim=(0, 1.05 * slowest),
        title="candidates: score and mean latency (higher and further left is better)",
    )
    axes.legend()
    figure.savefig(path, dpi=DPI)


@styled
def plot_reliability(report: SearchReport, path: Path) -> None:
    """Plot each level's accuracy against its confidence on the report part, before and after calibration.

    Args:
        report: Report of the search.
        path: Image file to write.
    """
    figure = _figure(4 * len(report.levels), 4)
    for axes, level in zip(figure.subplots(1, len(report.levels), squeeze=False)[0], report.levels, strict=True):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":", label="perfect calibration")
        drawn = (
            ("before", level.reliability_before, level.calibration.ece_before),
            ("after", level.reliability_after, level.calibration.ece_after),
        )
        for name, bins, error in drawn:
            label = name if error is None else f"{name}, ECE {error:.3f}"
            sure, right = [each.confidence for each in bins], [each.accuracy for each in bins]
            (line,) = axes.plot(sure, right, linewidth=0.8, label=label)
            # Bins of few queries, which vary most, are drawn small.
            total = sum(each.count for each in bins)
            axes.scatter(sure, right, s=[5 + 300 * each.count / total for each in bins], color=line.get_color())
        axes.set(xlabel="confidence", ylabel="accuracy", title=level.name, xlim=(0, 1), ylim=(0, 1.02))
        axes.legend()
    figure.savefig(path, dpi=DPI)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
