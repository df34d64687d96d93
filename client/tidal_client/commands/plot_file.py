"""The option `--plot` of commands that draw their result."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import typer

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot_file(file: Path | None) -> None:
    """Check the value of `--plot`, before the run rather than after it.

    Args:
        file: File to draw; None: the option is not used.

    Raises:
        typer.BadParameter: matplotlib is not installed, the format is unknown, or the folder does not exist.
    """
    if file is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise _refusal("requires matplotlib, which is not installed: pip install matplotlib")
    if file.suffix not in _SUFFIXES:
        raise _refusal(f"got '{file.name}'; expected a file name that ends in {', '.join(_SUFFIXES)}")
    if not file.parent.is_dir():
        raise _refusal(f"the folder {file.parent} does not exist: create it first")


def _refusal(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint="--plot")
