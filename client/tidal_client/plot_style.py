"""The style of all figures: one colour for Tidal, the colours of others in order, sizes of text, grid, resolution.

Tidal is blue, its variants are lighter blues, and others have other hues. Drawing alone imports matplotlib.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

TIDAL = "#0969da"
VARIANTS = ("#54aeff", "#80ccff", "#b6e3ff", "#ddf4ff")
OTHERS = (
    *("#57606a", "#bc4c00", "#1a7f37", "#8250df", "#bf8700", "#cf222e"),
    *("#1b7c83", "#953800", "#a475f9", "#8c959f", "#d4a72c", "#4d2d00"),
)
#: Marks such as limits, and text below a figure.
GREY = "#57606a"
#: Failures.
RED = "#cf222e"
#: Resolution of the files, in dots per inch.
DPI = 130
_RC: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#d0d7de",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "svg.hashsalt": "tidal",
}
_P = ParamSpec("_P")
_T = TypeVar("_T")


def styled(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function draw in the common style; lines without a colour of their own begin with Tidal's."""

    @functools.wraps(draw)
    def inside(*args: _P.args, **options: _P.kwargs) -> _T:
        from cycler import cycler
        from matplotlib import rc_context

        with rc_context({**_RC, "axes.prop_cycle": cycler(color=[TIDAL, *OTHERS])}):
            return draw(*args, **options)

    return inside
