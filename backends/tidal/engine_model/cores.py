"""A processor core of its own for each instance of one thread, without anybody who hands them out.

Instances are processes that come and go one by one, of several models. Each claims a core by a lock on the core's file;
the kernel frees it when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Collection
from pathlib import Path

from tidal.errors import Unsupported

# Names another folder for the lock files. Servers with different ones do not know of each other's cores.
CLAIMS_VARIABLE = "TIDAL_CLAIMS"


def claims_folder() -> Path:
    """The folder of this user's lock files, a file a core; made where it does not exist.

    One for all servers of the user on this machine, unless `$TIDAL_CLAIMS` names another.

    Raises:
        Unsupported: it cannot be made, or it is another user's.
    """
    folder = Path(os.environ.get(CLAIMS_VARIABLE) or f"/dev/shm/tidal-claims-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise Unsupported(f"cores cannot be claimed in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unsupported(f"cores cannot be claimed in {folder}: it is another user's")
    return folder


class CoreClaim:
    """This process's claim to one of the cores that it may run on.

    Args:
        folder: lock files, see `claims_folder`.
        cores: cores that may be claimed.
    """

    def __init__(self, folder: Path, cores: Collection[int]) -> None:
        self._folder = folder
        self._cores = sorted(cores)
        self._lock: int | None = None
        self.core: int | None = None

    def claim(self) -> bool:
        """Claim the first core that is free, if this process has none, and move all its threads there.

        Threads that start later inherit it from those that start them.

        Returns:
            Whether a core was claimed now.
        """
        if self.core is not None:
            return False
        for core in self._cores:
            lock = os.open(self._folder / f"core{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock, self.core = lock, core
            _move_threads(core)
            return True
        return False

    def release(self) -> None:
        """Free the core for others; this process's threads stay where they are."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self.core = None


def _move_threads(core: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), {core})
