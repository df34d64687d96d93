"""Arrays in a file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an .npz file.

    In one piece: where the disk is full, an archive that is written as it grows prints a second error when it is
    collected, beside the one that is raised.

    Raises:
        OSError: there is no room.
    """
    content = io.BytesIO()
    np.savez(content, **dict(arrays))
    path.write_bytes(content.getbuffer())
