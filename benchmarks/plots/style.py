"""What all figures share: one colour for Tidal, one order of systems, titles, units, spread over rounds.

Tidal is blue and comes first in every figure, its variants are lighter blues, and other systems have other hues in the
order in which a benchmark names them.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import machine_line
from tidal_client.plot_style import DPI, GREY, OTHERS, TIDAL, VARIANTS, styled

__all__ = ["PARTS", "TIDAL", "VARIANTS", "bars", "colours", "finish", "legend", "line", "panels", "styled", "written"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Sequences that are no systems, such as parts of a whole: from dark to light.
PARTS = ("#24292f", "#57606a", "#8c959f", "#d0d7de")
# Inches of the title, and names of a legend side by side.
_TITLE, _COLUMNS = 0.28, 6


def colours(systems: Sequence[str], tidal: Sequence[str], variants: Sequence[str] = ()) -> dict[str, str]:
    """Colour of each system, in the order in which all figures show them: Tidal, its variants, the others.

    Args:
        systems: Names of all systems of the figure.
        tidal: Names under which Tidal itself appears.
        variants: Names of those that are Tidal with a part changed, at most four.
    """
    found = dict.fromkeys((name for name in tidal if name in systems), TIDAL)
    found |= dict(zip([name for name in variants if name in systems], VARIANTS, strict=False))
    others = [name for name in systems if name not in found]
    return found | dict(zip(others, OTHERS, strict=False))


def panels(columns: int, rows: int = 1, *, width: float = 4.2, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure of several panels, and the panels row by row; sizes of a panel are in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def finish(figure: Figure, title: str, machine: Mapping[str, Any], file: Path) -> None:
    """Write the title above and the machine below, and save.

    Args:
        figure: Complete but for these.
        title: Title of the figure, with the better direction.
        machine: Machine of the measurement, as `benchmarks.report.machine` describes it.
        file: PNG or SVG to write.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width, height = map(float, figure.get_size_inches())
    below = textwrap.fill(machine_line(machine), int(24 * width))
    figure.text(0.08 / width, 1 - 0.06 / height, title, fontsize=10, fontweight="bold", va="top")
    figure.text(0.08 / width, 0.04 / height, below, fontsize=5.5, color=GREY)
    bottom = 0.14 + 0.09 * (below.count("\n") + 1)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    rows = sum(-(-len(each.legend_handles) // _COLUMNS) for each in figure.legends)
    engine.set(rect=(0, bottom / height, 1, 1 - (bottom + _TITLE + 0.2 * rows) / height))
    figure.savefig(file, dpi=DPI)


def legend(figure: Figure, shown: Mapping[str, str]) -> None:
    """One legend for all panels.

    Args:
        figure: Figure of the panels.
        shown: Colour of each name.
    """
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in shown.items()]
    top = 1 - _TITLE / figure.get_size_inches()[1]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, top), ncols=min(len(handles), _COLUMNS))


def line(axes: Axes, places: Sequence[float], rounds: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Medians over rounds as a line, with the range of the rounds behind it.

    Args:
        axes: Panel to draw in.
        places: Positions on the horizontal axis.
        rounds: Values of the rounds at each of them.
        colour: Colour of the line.
        label: Its name.
    """
    axes.plot(places, [statistics.median(values) for values in rounds], marker="o", color=colour, label=label)
    if any(len(values) > 1 for values in rounds):
        axes.fill_between(places, list(map(min, rounds)), list(map(max, rounds)), color=colour, alpha=0.15, linewidth=0)


def bars(axes: Axes, places: Sequence[float], rounds: Sequence[Sequence[float]], width: float, colour: str) -> None:
    """Medians over rounds as bars with their figures, and whiskers over the range of the rounds.

    Args:
        axes: Panel to draw in.
        places: Middles of the bars on the horizontal axis.
        rounds: Values of the rounds of each bar.
        width: Width of a bar.
        colour: Colour of the bars.
    """
    medians = [statistics.median(values) for values in rounds]
    axes.bar(places, medians, width, color=colour)
    if any(len(values) > 1 for values in rounds):
        below = [middle - min(values) for middle, values in zip(medians, rounds, strict=True)]
        above = [max(values) - middle for middle, values in zip(medians, rounds, strict=True)]
        axes.errorbar(places, medians, (below, above), fmt="none", ecolor="#24292f", elinewidth=0.8, capsize=2)
    for place, middle, values in zip(places, medians, rounds, strict=True):
        top = (place, max(values))
        axes.annotate(written(middle), top, (0, 3), textcoords="offset points", ha="center", fontsize=6)


def written(value: float) -> str:
    """A value as it is written at a bar: three digits, or all of a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
