"""Runs what needs timm in a process of its own, which alone sees the folder with timm and torchvision."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tidal.errors import Internal, InvalidArgument, NotFound

FOLDER_VARIABLE = "TIDAL_VISION"
_REFUSED = 2
_SECONDS = 600


def vision_folder() -> Path:
    """Where timm and torchvision are installed by themselves (`make vision`): `$TIDAL_VISION`, else `vision` in this
    Python's environment."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(sys.prefix) / "vision"


def has_timm() -> bool:
    """Whether a child process will find timm."""
    return (vision_folder() / "timm").is_dir() or find_spec("timm") is not None


def export_timm_model(source: Path, folder: Path) -> None:
    """Write a timm model as plain tensors; see `timm_export.export_timm`.

    Raises:
        NotFound: timm is not installed; says how to.
        InvalidArgument: the source is refused, and why.
        Internal: the process failed otherwise.
    """
    if not has_timm():
        raise NotFound(
            f"a timm model is read by timm, which is not in {vision_folder()}: run `make vision`, or set "
            f"{FOLDER_VARIABLE} to a folder that `pip install --no-deps --target` put timm and torchvision into"
        )
    path = os.pathsep.join(filter(None, [str(vision_folder()), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "tidal_builders.otas.timm_export", str(source.resolve()), str(folder.resolve())]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if done.returncode == _REFUSED:
            raise InvalidArgument(f"field 'model': {reason}")
        raise Internal(f"reading the timm model {source} failed: {reason}")
