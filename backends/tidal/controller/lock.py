"""The lock that allows one controller per model: two would undo each other's allocations."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from tidal.errors import Unavailable
from tidal.server.state import state_folder


def lock_model(model_dir: Path) -> int:
    """Lock a model until this process ends or the returned file descriptor is closed.

    Args:
        model_dir: Folder of the model in the repository.

    Raises:
        Unavailable: Another process holds the lock.
    """
    digest = hashlib.sha256(str(model_dir.resolve()).encode()).hexdigest()[:16]
    descriptor = os.open(state_folder() / f"{digest}.controller", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise Unavailable(f"'{model_dir.name}' is already controlled by process {holder}") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor
