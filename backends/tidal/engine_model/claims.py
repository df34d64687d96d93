"""A processor core or a GPU of its own for each instance, without anybody who hands them out.

Instances are processes that come and go one by one, of several models. Each claims a place by a lock on the place's
file; the kernel frees it when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tidal.errors import Unsupported
from tidal.gpus import VISIBLE_VARIABLE

# Names another folder for the lock files. Servers with different ones do not know of each other's places.
CLAIMS_VARIABLE = "TIDAL_CLAIMS"
# Instances of one GPU that are counted.
_SHARES = 16


def claims_folder() -> Path:
    """The folder of this user's lock files, a file a place; made where it does not exist.

    One for all servers of the user on this machine, unless `$TIDAL_CLAIMS` names another.

    Raises:
        Unsupported: it cannot be made, or it is another user's.
    """
    folder = Path(os.environ.get(CLAIMS_VARIABLE) or f"/dev/shm/tidal-claims-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise Unsupported(f"cores and GPUs cannot be claimed in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unsupported(f"cores and GPUs cannot be claimed in {folder}: it is no folder of this user's")
    return folder


class SlotClaim:
    """This process's claim to one of several places.

    Args:
        folder: lock files, see `claims_folder`.
        places: names of the places, the first that is free is taken.
    """

    def __init__(self, folder: Path, slots: Sequence[str]) -> None:
        self._folder = folder
        self._slots = slots
        self._lock: int | None = None
        self.slot: str | None = None

    def acquire(self) -> bool:
        """Claim a place that is free, if this process has none; returns whether one was claimed now.

        Raises:
            Unsupported: the file system refuses a lock file or its lock.
        """
        if self.slot is not None:
            return False
        for slot in self._slots:
            lock = _locked(self._folder / slot)
            if lock is not None:
                self._lock, self.slot = lock, slot
                return True
        return False

    def release(self) -> None:
        """Free the place for others."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self.slot = None


def _locked(path: Path, *, wait: bool = False) -> int | None:
    """A descriptor that holds the file's lock; None where another process has it and is not waited for.

    Raises:
        Unsupported: the file system refuses the file or its lock.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
    except BlockingIOError:
        return None
    except OSError as error:
        raise Unsupported(f"{path} cannot be locked: {error.strerror}") from None
    return lock


class CoreClaim:
    """A claim to one of the cores that this process may run on.

    Args:
        folder: lock files, see `claims_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._cores = {f"core{core}": core for core in sorted(os.sched_getaffinity(0))}
        self._claim = SlotClaim(folder, list(self._cores))

    @property
    def core(self) -> int | None:
        """The claimed core."""
        return None if self._claim.slot is None else self._cores[self._claim.slot]

    def acquire(self) -> bool:
        """Claim a core that is free, if this process has none, and move all its threads there.

        Threads that start later inherit it from those that start them. Returns whether one was claimed now.

        Raises:
            Unsupported: see `Claim.acquire`, and where the system does not let threads be moved there.
        """
        if not self._claim.acquire():
            return False
        core = self._cores[self._claim.slot or ""]
        try:
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    os.sched_setaffinity(int(thread), {core})
        except OSError as error:
            self.release()
            raise Unsupported(f"threads cannot be moved to core {core}: {error.strerror}") from None
        return True

    def release(self) -> None:
        """Free the core for others; this process's threads stay where they are."""
        self._claim.release()


class GpuClaim:
    """A claim to one of several GPUs, taken before CUDA starts in this process and kept to its end.

    Args:
        folder: lock files, see `claims_folder`.
        gpus: as `visible_gpus` names them.
    """

    def __init__(self, folder: Path, gpus: Sequence[str]) -> None:
        self._folder = folder
        # A GPU's name may be a number: the place's says what it is.
        self._slots = {gpu: [f"gpu-{gpu}", *(f"gpu-{gpu}.{n}" for n in range(2, _SHARES + 1))] for gpu in gpus}
        self._claim: SlotClaim | None = None

    def acquire(self) -> str:
        """Let this process use a GPU that the fewest other instances have; returns it.

        So they are spread evenly also where there are more of them, as while a model serves two versions.

        Raises:
            Unsupported: see `Claim.acquire`.
        """
        counting_lock = _locked(
            self._folder / "gpus", wait=True
        )  # whoever looked at the same time would count these looks
        try:
            gpu = min(self._slots, key=self._instances)
            self._claim = SlotClaim(self._folder, self._slots[gpu])
            self._claim.acquire()
        finally:
            if counting_lock is not None:
                os.close(counting_lock)
        os.environ[VISIBLE_VARIABLE] = gpu
        return gpu

    def release(self) -> None:
        """Free the GPU for others."""
        if self._claim is not None:
            self._claim.release()

    def _instances(self, gpu: str) -> int:
        count = 0
        for slot in self._slots[gpu]:
            lock = _locked(self._folder / slot)
            if lock is None:
                count += 1
            else:
                os.close(lock)
        return count
