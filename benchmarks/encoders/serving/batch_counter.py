"""The number of batches that a process of a server has formed, in a file that the benchmark reads."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np


class BatchCounter:
    """Number of batches and of their rows, in a file of this process that the benchmark reads.

    Args:
        folder: Folder of the files of all processes of a server.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder) / str(os.getpid())
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._counts = np.frombuffer(mmap.mmap(file.fileno(), 16), np.int64)

    def add(self, rows: int) -> None:
        """Count a batch."""
        self._counts[:] += (rows, 1)
