"""A task in memory: the cache's entry for it, and the lease of a query that uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from tidal.errors import TidalError
from tidal.tasks.folder import Stamp


class ReadTask(Protocol):
    """A task that has been read from its folder."""

    @property
    def bytes(self) -> int:
        """Size of the task in memory, in bytes."""


Task = TypeVar("Task", bound=ReadTask)
Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class CacheState:
    """State of the cache, for metrics.

    Attributes:
        bytes: Size of the tasks in memory, including retired ones, in bytes.
        resident: Number of tasks that queries get at once.
        loading: Number of tasks that queries wait for.
        known: Number of existing tasks.
        loads: Number of tasks loaded since the start.
        evictions: Number of tasks evicted since the start.
        failures: Number of failed loads since the start.
    """

    bytes: int
    resident: int
    loading: int
    known: int
    loads: int
    evictions: int
    failures: int


@dataclass(slots=True)
class Entry(Generic[Handle]):
    """A task that is in memory, is being loaded, or failed to load.

    Attributes:
        name: Name of the task.
        stamp: Stamp of its files when it was requested.
        state: Whether it is in memory.
        waiters: Futures of the queries that wait for the load.
        pins: Number of queries that use it.
        bytes: Size in memory, in bytes.
        handle: Handle that queries use; set when it is resident.
        error: Reason why it did not load; set when it failed.
    """

    name: str
    stamp: Stamp
    state: Literal["loading", "resident", "failed"] = "loading"
    waiters: list[Future[Lease[Handle]]] = field(default_factory=list)
    pins: int = 0
    bytes: int = 0
    handle: Handle | None = None
    error: TidalError | None = None


class Lease(Generic[Handle]):
    """A task in use, which stays in memory until the lease is released or its `with` block ends.

    Args:
        handle: Handle of the loaded task.
        release: Called once, at the release.

    Attributes:
        handle: Handle of the loaded task.
    """

    def __init__(self, handle: Handle, release: Callable[[], None]) -> None:
        self.handle = handle
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Release the task; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Lease[Handle]:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class SharedLease:
    """A lease that several queries hold: the task may leave memory once all of them have released it.

    Args:
        lease: Lease that is shared.
        holders: Number of queries that hold it.
    """

    def __init__(self, lease: Lease[Handle], holders: int) -> None:
        self._release = lease.release
        self._holders = holders
        self._lock = threading.Lock()

    def release(self) -> None:
        """Release it for one query; each query calls this once."""
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._release()


def forget(future: Future[Lease[Handle]]) -> None:
    """Cancel a future of `TaskCache.acquire`, or release the task if it has loaded or will."""
    if not future.cancel():
        future.add_done_callback(_release)


def _release(future: Future[Lease[Handle]]) -> None:
    if future.exception() is None:
        future.result().release()
