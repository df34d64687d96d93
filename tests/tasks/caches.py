"""Caches of tasks over a fake engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidal.tasks.cache import TaskCache
from tidal.tasks.folder import Stamp

# Bytes of a task.
SIZE = 40


@dataclass(frozen=True)
class Task:
    """A task that was read from its files."""

    name: str
    bytes: int


def task(name: str, size: int = SIZE) -> Task:
    return Task(name, size)


@dataclass
class Engine:
    """A fake engine: records which tasks are loaded, and violations of the contract."""

    loaded: dict[str, int] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    in_use: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, found: Task) -> str:
        with self.lock:
            handle = f"{found.name}#{len(self.history)}"
            self.loaded[handle] = found.bytes
            self.history.append(handle)
            return handle

    def unload(self, handle: str) -> None:
        with self.lock:
            if self.in_use.get(handle):
                self.problems.append(f"{handle} unloaded in use")
            if self.loaded.pop(handle, None) is None:
                self.problems.append(f"{handle} unloaded twice")

    def loads(self) -> list[str]:
        return [handle.partition("#")[0] for handle in self.history]

    def inside(self) -> set[str]:
        with self.lock:
            return {handle.partition("#")[0] for handle in self.loaded}


def stamps(*names: str, version: int = 0) -> dict[str, Stamp]:
    return dict.fromkeys(names, (version, 0, 0))


@contextmanager
def cache_of(
    engine: Engine,
    known: Mapping[str, Stamp],
    capacity: int,
    read: Callable[[str], Task] = task,
    load: Callable[[Task], str] | None = None,
) -> Iterator[TaskCache[Task, str]]:
    """A cache with memory for `capacity` tasks."""
    cache = TaskCache(read, load or engine.load, engine.unload, capacity * SIZE)
    cache.update(known)
    try:
        yield cache
    finally:
        cache.close()
    assert not engine.problems
    assert cache.state().bytes == sum(engine.loaded.values())


def use(cache: TaskCache[Task, str], name: str) -> None:
    with cache.acquire(name).result(10) as lease:
        assert lease.handle.startswith(f"{name}#")
