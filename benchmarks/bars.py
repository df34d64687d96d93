"""Plots of grouped bars: one group per case, one bar per system."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import machine_line

_WIDTH = 0.8


@dataclass(frozen=True, slots=True)
class Bars:
    """One panel of a plot.

    Attributes:
        title: Title of the panel.
        unit: Unit of the figures.
        groups: Names of the cases, from left to right.
        systems: Figures by system, one for each case.
        log: Whether the axis is logarithmic.
    """

    title: str
    unit: str
    groups: Sequence[str]
    systems: Mapping[str, Sequence[float]]
    log: bool = False


def save(panels: Sequence[Bars], file: Path) -> None:
    """Draw panels side by side into a PNG.

    Args:
        panels: Panels, from left to right.
        file: PNG to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        width = _WIDTH / len(panel.systems)
        for number, (system, values) in enumerate(panel.systems.items()):
            left = [place - _WIDTH / 2 + (number + 0.5) * width for place in range(len(panel.groups))]
            drawn = axes.bar(left, values, width, label=system)
            axes.bar_label(drawn, fmt=lambda value: f"{value:.3g}", fontsize=6)
        axes.set_xticks(range(len(panel.groups)), panel.groups, fontsize=8)
        axes.set_ylabel(panel.unit)
        axes.set_yscale("log" if panel.log else "linear")
        axes.set_title(panel.title, fontsize=9)
        axes.margins(y=0.25)
        axes.legend(fontsize=7)
    figure.suptitle(textwrap.fill(machine_line(), 55 * len(panels)), fontsize=6)
    figure.savefig(file, dpi=110)
