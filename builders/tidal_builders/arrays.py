"""Writes arrays into a file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an .npz file in one piece.

    An archive that is written incrementally to a full disk prints a second error when it is garbage-collected.

    Args:
        path: File to write.
        arrays: Arrays by name.

    Raises:
        OSError: The disk is full.
    """
    content = io.BytesIO()
    np.savez(content, **dict(arrays))
    path.write_bytes(content.getbuffer())
