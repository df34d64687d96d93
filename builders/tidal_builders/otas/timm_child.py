"""Run timm in a child process, which is the only one that sees the folder with timm and torchvision."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tidal.errors import Internal, InvalidArgument, NotFound

FOLDER_VARIABLE = "TIDAL_VISION"
_REFUSED_EXIT_CODE = 2
_TIMEOUT_S = 600


def vision_folder() -> Path:
    """Return the folder of timm and torchvision (`make vision`): `$TIDAL_VISION`, or `vision` in this environment."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(sys.prefix) / "vision"


def has_timm() -> bool:
    """Whether a child process can import timm."""
    return (vision_folder() / "timm").is_dir() or find_spec("timm") is not None


def export_timm_model(source: Path, folder: Path) -> None:
    """Write a timm model as plain tensors; see `timm_export.export_timm`.

    Raises:
        NotFound: timm is not installed; the message says how to install it.
        InvalidArgument: The source is refused; the message contains the reason.
        Internal: The process failed otherwise.
    """
    if not has_timm():
        raise NotFound(
            f"timm is not installed in {vision_folder()}, and is required to read a timm model: run `make vision`, or "
            f"set {FOLDER_VARIABLE} to a folder with timm and torchvision from `pip install --no-deps --target`"
        )
    path = os.pathsep.join(filter(None, [str(vision_folder()), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "tidal_builders.otas.timm_export", str(source.resolve()), str(folder.resolve())]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if done.returncode == _REFUSED_EXIT_CODE:
            raise InvalidArgument(f"field 'model': {reason}")
        raise Internal(f"reading the timm model {source} failed: {reason}")
