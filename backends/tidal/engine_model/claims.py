"""Exclusive processor cores and GPUs for instances, without a coordinator.

Instances are processes of several models that start and end independently. Each claims a slot by a lock on the slot's
file; the kernel releases the lock when the process ends, for whatever reason.
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

# Environment variable with another folder for the lock files. Servers with different folders do not see each other's
# claims.
CLAIMS_VARIABLE = "TIDAL_CLAIMS"
# Maximum number of instances per GPU that are counted.
_SHARES = 16


def claims_folder() -> Path:
    """Return the folder of this user's lock files, one per slot; create it if it does not exist.

    All servers of the user on this machine share it, unless `$TIDAL_CLAIMS` names another one.

    Raises:
        Unsupported: The folder cannot be created, or belongs to another user.
    """
    folder = Path(os.environ.get(CLAIMS_VARIABLE) or f"/dev/shm/tidal-claims-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise Unsupported(f"cores and GPUs cannot be claimed in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise Unsupported(f"cores and GPUs cannot be claimed in {folder}: it is not a folder of this user")
    return folder


class SlotClaim:
    """This process's claim to one of several slots.

    Args:
        folder: Folder of the lock files, see `claims_folder`.
        slots: Names of the slots; the first free one is claimed.
    """

    def __init__(self, folder: Path, slots: Sequence[str]) -> None:
        self._folder = folder
        self._slots = slots
        self._lock: int | None = None
        self.slot: str | None = None

    def acquire(self) -> bool:
        """Claim a free slot unless this process has one; return whether one was claimed now.

        Raises:
            Unsupported: The file system does not support the lock file or its lock.
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
        """Release the slot."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self.slot = None


def _locked(path: Path, *, wait: bool = False) -> int | None:
    """Lock a file and return its descriptor; None if another process has the lock and `wait` is False.

    Raises:
        Unsupported: The file system does not support the file or its lock.
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
        folder: Folder of the lock files, see `claims_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._cores = {f"core{core}": core for core in sorted(os.sched_getaffinity(0))}
        self._claim = SlotClaim(folder, list(self._cores))

    @property
    def core(self) -> int | None:
        """Claimed core; None: none is claimed."""
        return None if self._claim.slot is None else self._cores[self._claim.slot]

    def acquire(self) -> bool:
        """Claim a free core unless this process has one, and move all its threads there.

        Threads that start later inherit the core. Returns whether a core was claimed now.

        Raises:
            Unsupported: See `SlotClaim.acquire`; or threads cannot be moved to the core.
        """
        if not self._claim.acquire():
            return False
        core = self._cores[self._claim.slot or ""]
        try:
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(ProcessLookupError):  # the thread has ended since
                    os.sched_setaffinity(int(thread), {core})
        except OSError as error:
            self.release()
            raise Unsupported(f"threads cannot be moved to core {core}: {error.strerror}") from None
        return True

    def release(self) -> None:
        """Release the core; this process's threads stay on it."""
        self._claim.release()


class GpuClaim:
    """A claim to one of several GPUs, made before CUDA starts in this process and held until its end.

    Args:
        folder: Folder of the lock files, see `claims_folder`.
        gpus: Names of the GPUs, as of `visible_gpus`.
    """

    def __init__(self, folder: Path, gpus: Sequence[str]) -> None:
        self._folder = folder
        # The prefix keeps a GPU named by a number apart from a core.
        self._slots = {gpu: [f"gpu-{gpu}", *(f"gpu-{gpu}.{n}" for n in range(2, _SHARES + 1))] for gpu in gpus}
        self._claim: SlotClaim | None = None

    def acquire(self) -> str:
        """Claim the GPU with the fewest instances for this process, and return it.

        Instances so spread evenly even if there are more of them than GPUs, as while a model serves two versions.

        Raises:
            Unsupported: See `SlotClaim.acquire`.
        """
        counting_lock = _locked(self._folder / "gpus", wait=True)  # concurrent counts would disturb each other
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
        """Release the GPU."""
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
