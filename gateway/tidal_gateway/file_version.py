"""What distinguishes the content of a file from what was read before, without reading it."""

from __future__ import annotations

from pathlib import Path


def file_version(path: Path) -> tuple[int, int, int] | None:
    """Return inode, time of the last change and size of a file; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
