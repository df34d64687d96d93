"""The lock that lets one process at a time change the instances of a partitioned model."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidal.errors import Unavailable


@contextmanager
def exclusive_change(front: Path) -> Iterator[None]:
    """Lock a partitioned model's instances for the length of a block; the kernel releases the lock with the process.

    Args:
        front: Folder of the partitioned model.

    Raises:
        Unavailable: Another process holds the lock.
    """
    descriptor = os.open(front, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"the instances of '{front.name}' are being changed already: try again") from None
        yield
    finally:
        os.close(descriptor)
