"""Build a folder once for all test workers of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def built_once(temporary: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Return a folder that the first worker which needs it builds, while others wait; tests must not change it.

    Args:
        temporary: Factory of temporary folders of this worker.
        name: Name of the folder, unique among all tests.
        build: Writes the content into the folder, which does not exist yet.
    """
    root = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each worker has a folder of its own in that of the run
    folder, done = root / f"once_{name}", root / f"once_{name}.done"
    with (root / f"once_{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            build(folder)
            done.touch()
    return folder
