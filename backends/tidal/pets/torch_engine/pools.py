"""Memory of the dense terms of all tasks: rows of numbers, in one matrix on the device per length of a row.

A bias is one row, a low-rank difference or a bottleneck a few rows of each side. So terms of any rank are gathered for
a batch by row numbers alone, and tasks of different ranks share a matrix without padding.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tidal.errors import Unavailable
from tidal.pets.terms import FloatArray

_FIRST_ROWS = 64
_GROWTH = 1.5
# Number of the row of zeros in every matrix, which adds nothing.
ZERO_ROW = 0


class RowPool:
    """Rows of one length. Rows are stored and freed from any thread, while batches read others.

    A full matrix is replaced by a larger copy; a batch that began with the old one keeps it.

    Args:
        length: Length of a row.
        device: Device of the matrix.
        rows: Number of rows of a matrix at a fixed address; None: the matrix grows.
    """

    def __init__(self, length: int, device: torch.device, rows: int | None = None) -> None:
        self.matrix = torch.zeros(rows or _FIRST_ROWS, length, device=device)
        self._grows = rows is None
        self._free = [(1, len(self.matrix) - 1)]  # first row and number of rows, ascending
        # Freed rows: added by finalizers of tasks on any thread, which must not wait for a lock.
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def put(self, rows: FloatArray) -> int:
        """Store consecutive rows.

        Args:
            rows: float32 [count, length].

        Returns:
            Number of the first row.

        Raises:
            Unavailable: The matrix is full and has a fixed size.
        """
        with self._lock:
            first = self._claim(len(rows))
            self.matrix[first : first + len(rows)].copy_(torch.from_numpy(np.require(rows, requirements=["C", "W"])))
            _finish(self.matrix)
        return first

    def free(self, first: int, count: int) -> None:
        """Free rows that no batch reads any more.

        Args:
            first: Number of the first row.
            count: Number of rows.
        """
        self._freed.append((first, count))

    def _claim(self, count: int) -> int:
        while self._freed:
            self._free.append(self._freed.popleft())
        self._free = _merged_ranges(sorted(self._free))
        position = next((position for position, (_, size) in enumerate(self._free) if size >= count), None)
        if position is None:
            if not self._grows:
                rows, length = self.matrix.shape
                raise Unavailable(
                    f"the bank of {rows} rows of {length} numbers has no space for {count}: serve fewer tasks at a "
                    "time (task_memory_mb), or build with larger banks"
                )
            self._grow(count)
            return self._claim(count)
        first, size = self._free[position]
        self._free[position : position + 1] = [(first + count, size - count)] if size > count else []
        return first

    def _grow(self, count: int) -> None:
        old = len(self.matrix)
        size = max(old + count, int(old * _GROWTH))
        grown = torch.zeros(size, self.matrix.shape[1], device=self.matrix.device)
        grown[:old].copy_(self.matrix)
        _finish(grown)
        self.matrix = grown
        self._free.append((old, size - old))


class RowPools:
    """The matrices of an engine, one per length of a row.

    Args:
        lengths: Lengths of rows.
        device: Device of the matrices.
        rows: Number of rows of each matrix, by length, for matrices at fixed addresses; None: the matrices grow.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, rows: Mapping[int, int] | None = None) -> None:
        self._pools = {
            length: RowPool(length, device, None if rows is None else rows[length]) for length in sorted(set(lengths))
        }

    def matrices(self) -> Mapping[int, torch.Tensor]:
        """The present matrices [rows, length] by length."""
        return {length: pool.matrix for length, pool in self._pools.items()}

    def put(self, length: int, rows: FloatArray) -> int:
        """Store rows [count, length]; returns the number of the first."""
        return self._pools[length].put(rows)

    def free(self, length: int, first: int, count: int) -> None:
        """Free rows that no batch reads any more."""
        self._pools[length].free(first, count)


def _merged_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges, with adjacent ones merged."""
    joined = list(ranges[:1])
    for (_, _), (first, size) in itertools.pairwise(ranges):
        before, length = joined[-1]
        if before + length == first:
            joined[-1] = before, length + size
        else:
            joined.append((first, size))
    return joined


def _finish(tensor: torch.Tensor) -> None:
    """Wait for a copy to finish: batches run on streams of their own."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
