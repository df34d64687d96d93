"""A file that all workers map: rows by name, with a count of each worker that vanishes with it."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

_WORKERS: Final = 64
# Process id of each worker; then the rows: hash of the name, further values, a count per worker.
_HEADER: Final = struct.Struct(f"<{_WORKERS}I")
_DIGEST: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_COUNTS: Final = struct.Struct(f"<{_WORKERS}I")


class WorkerTable:
    """A table of up to `rows` names.

    Args:
        path: File that `create_worker_table` created.
        rows: Number of rows.
        values: Form of each row's further values.
    """

    def __init__(self, path: Path, rows: int, values: struct.Struct) -> None:
        self._rows, self._values = rows, values
        self._row_bytes = _DIGEST.size + values.size + _COUNTS.size
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._table = mmap.mmap(self._descriptor, 0)
        self._worker = self._claim()

    def row(self, name: str) -> int | None:
        """Return the offset of a name's row, new or own; None if the table is full. The caller holds the lock."""
        digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1
        for step in range(self._rows):
            offset = _HEADER.size + (digest + step) % self._rows * self._row_bytes
            (found,) = _DIGEST.unpack_from(self._table, offset)
            if not found:
                _DIGEST.pack_into(self._table, offset, digest)
            if found in (0, digest):
                return offset
        return None

    def read(self, row: int) -> Any:
        """Return a row's further values."""
        return self._values.unpack_from(self._table, row + _DIGEST.size)

    def write(self, row: int, *values: Any) -> None:
        """Replace a row's further values."""
        self._values.pack_into(self._table, row + _DIGEST.size, *values)

    def add(self, row: int, change: int) -> None:
        """Add to this worker's count of a row, which no other worker changes."""
        place = row + _DIGEST.size + self._values.size + self._worker * _COUNT.size
        (count,) = _COUNT.unpack_from(self._table, place)
        _COUNT.pack_into(self._table, place, max(0, count + change))

    def total(self, row: int) -> int:
        """Return the sum of all workers' counts of a row."""
        return sum(_COUNTS.unpack_from(self._table, row + _DIGEST.size + self._values.size))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude the other workers until the block ends."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        self._table.close()
        os.close(self._descriptor)

    def _claim(self) -> int:
        """Take the column of a worker that has ended, or a free one, and clear it."""
        with self.locked():
            owners = list(_HEADER.unpack_from(self._table, 0))
            worker = next(index for index, pid in enumerate(owners) if not pid or not _is_alive(pid))
            owners[worker] = os.getpid()
            _HEADER.pack_into(self._table, 0, *owners)
            for row in range(self._rows):
                start = _HEADER.size + row * self._row_bytes + _DIGEST.size + self._values.size
                _COUNT.pack_into(self._table, start + worker * _COUNT.size, 0)
        return worker


def create_worker_table(path: Path, rows: int, values: struct.Struct) -> None:
    """Create the file of a table; see `WorkerTable`."""
    with path.open("wb") as file:
        file.truncate(_HEADER.size + rows * (_DIGEST.size + values.size + _COUNTS.size))


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
