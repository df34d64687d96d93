"""A task in memory: as the cache keeps it, and as a query has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from tidal.errors import TidalError
from tidal.tasks.folder import Stamp


class ReadTask(Protocol):
    """A task that was read from its folder."""

    @property
    def bytes(self) -> int:
        """What it takes in memory."""


Task = TypeVar("Task", bound=ReadTask)
Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class CacheState:
    """What is in memory, for metrics.

    Attributes:
        bytes: of the resident tasks, retired ones included.
        resident: tasks that queries get at once.
        loading: tasks that queries wait for.
        known: tasks that there are.
        loads: tasks loaded since the start.
        evictions: tasks that left for others.
        failures: loads that failed.
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
    """A task in memory, or on its way there."""

    name: str
    stamp: Stamp
    state: Literal["loading", "resident", "failed"] = "loading"
    waiters: list[Future[Lease[Handle]]] = field(default_factory=list)
    pins: int = 0
    bytes: int = 0
    # Set with the state.
    handle: Handle | None = None
    error: TidalError | None = None


class Lease(Generic[Handle]):
    """A task in use: it stays in memory until the lease is released, once, or its `with` block ends."""

    def __init__(self, handle: Handle, release: Callable[[], None]) -> None:
        self.handle = handle
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let go; a second time does nothing."""
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
    """Release a task that nobody waits for any more, also one that is still being loaded."""
    if not future.cancel():
        future.add_done_callback(_release)


def _release(future: Future[Lease[Handle]]) -> None:
    if future.exception() is None:
        future.result().release()
