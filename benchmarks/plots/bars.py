"""Figures of grouped bars: a group for each case, a bar for each system, whiskers over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plots import style

_WIDTH = 0.8


@dataclass(frozen=True, slots=True)
class Bars:
    """One panel.

    Attributes:
        title: Title of the figure, with the better direction.
        unit: Unit of the values.
        groups: Names of the cases, from left to right.
        systems: Values of the rounds, by system and case.
        log: Whether the axis is logarithmic.
    """

    title: str
    unit: str
    groups: Sequence[str]
    systems: Mapping[str, Sequence[Sequence[float]]]
    log: bool = False


@style.styled
def save(
    panels: Sequence[Bars],
    title: str,
    machine: Mapping[str, Any],
    file: Path,
    *,
    tidal: Sequence[str],
    variants: Sequence[str] = (),
    width: float = 4.2,
) -> None:
    """Draw panels side by side.

    Args:
        panels: Panels to draw, from left to right.
        title: Title of the figure.
        machine: Machine of the measurement.
        file: PNG or SVG to write.
        tidal: Names under which Tidal itself appears.
        variants: Names of those that are Tidal with a part changed.
        width: Width of a panel in inches.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.systems))
    colours = style.colours(names, tidal, variants)
    figure, every = style.panels(len(panels), width=width)
    for axes, panel in zip(every, panels, strict=True):
        shown = [name for name in colours if name in panel.systems]
        each = _WIDTH / len(shown)
        for number, name in enumerate(shown):
            left = [group - _WIDTH / 2 + (number + 0.5) * each for group in range(len(panel.groups))]
            style.bars(axes, left, panel.systems[name], each, colours[name])
        axes.set_xticks(range(len(panel.groups)), panel.groups)
        axes.set(ylabel=panel.unit, yscale="log" if panel.log else "linear", title=panel.title)
        axes.margins(y=0.2)
    style.legend(figure, colours)
    style.finish(figure, title, machine, file)
