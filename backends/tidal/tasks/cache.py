"""Cache of tasks in memory: tasks load on first use, in the background, and the least recently used is evicted.

A task is *resident* from its load until it is unloaded, and its bytes count during all that time. A task in use is
pinned and is never unloaded. If all resident tasks are in use, the least recently used one is retired: queries that
hold it keep it, and new queries for it wait behind the task that needs the memory. So tasks that together exceed the
budget alternate, and no task waits forever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic

from tidal.errors import Internal, InvalidArgument, TidalError
from tidal.serving.endings import model_stops
from tidal.tasks.folder import Stamp
from tidal.tasks.lease import CacheState, Entry, Handle, Lease, Task
from tidal.tasks.names import unknown_task


class TaskCache(Generic[Task, Handle]):
    """Tasks of one model in memory; any thread may call any method, and none waits for a load.

    `read` and `load` run on the cache's threads, `unload` on those or on a thread that releases a task, so it has to be
    quick. If `load` fails, it has to free what it allocated.
    """

    def __init__(
        self,
        read: Callable[[str], Task],
        load: Callable[[Task], Handle],
        unload: Callable[[Handle], None],
        budget: int,
        loaders: int = 2,
    ) -> None:
        """Start without tasks; see `update`.

        Args:
            read: Reads a task by name from its folder and verifies it.
            load: Loads a task into the engine and returns the handle that queries use; the task itself is not kept.
            unload: Removes a loaded task from the engine.
            budget: Memory limit of all tasks together, in bytes.
            loaders: Number of threads that load.
        """
        self._read, self._load, self._unload = read, load, unload
        self._budget = budget
        self._changed = threading.Condition()
        self._known: dict[str, Stamp] = {}
        # By name, least recently used first; without retired entries.
        self._entries: dict[str, Entry[Handle]] = {}
        # Loads that wait for memory, first in first out.
        self._load_queue: deque[Entry[Handle]] = deque()
        self._used = self._loads = self._evictions = self._failures = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(loaders, "task-loader")

    def update(self, known: Mapping[str, Stamp]) -> None:
        """Update the list of existing tasks.

        A task that was removed or changed is unloaded as soon as no query uses it; one that failed to load is tried
        again after its files have changed.

        Args:
            known: Stamp of each task by name, from `scan`.
        """
        with self._changed:
            self._known = dict(known)
            changed = [entry for entry in self._entries.values() if self._known.get(entry.name) != entry.stamp]
            leaving = [entry for entry in changed if self._retire(entry)]
        self._unload_all(leaving)

    def names(self) -> list[str]:
        """Return the names of all tasks."""
        with self._changed:
            return list(self._known)

    def knows(self, name: str) -> bool:
        """Whether a task of this name exists."""
        with self._changed:
            return name in self._known

    def acquire(self, name: str) -> Future[Lease[Handle]]:
        """Acquire a task for use.

        Args:
            name: Name of the task.

        Returns:
            A future of the task's lease, done at once if the task is in memory; cancel it to stop waiting. Its error
            is the reason why the task did not load: `InvalidArgument` if it is refused or larger than the budget.

        Raises:
            InvalidArgument: There is no such task; names similar ones.
            Unavailable: The cache is closed.
        """
        future: Future[Lease[Handle]] = Future()
        known = self._known  # replaced as a whole, never modified
        if name not in known:
            raise unknown_task(name, known)  # slow, so outside the lock
        with self._changed:
            if self._closed:
                raise model_stops()
            stamp = self._known.get(name, known[name])
            entry = self._entries.pop(name, None)
            if entry is None:
                entry = Entry(name, stamp)
                self._pool.submit(self._load_entry, entry)
            self._entries[name] = entry  # now the most recently used
            if entry.state == "loading":
                entry.waiters.append(future)
                return future
            if entry.state == "resident":
                entry.pins += 1
        self._answer(entry, future)
        return future

    def acquire_now(self, name: str) -> Lease[Handle] | None:
        """Acquire a task for use if it is in memory; None if it is not, see `acquire`."""
        with self._changed:
            entry = self._entries.get(name)
            if entry is None or entry.state != "resident":
                return None
            self._entries[name] = self._entries.pop(name)  # now the most recently used
            entry.pins += 1
        return self._lease(entry)

    def state(self) -> CacheState:
        """Return the current state, for metrics."""
        with self._changed:
            states = [entry.state for entry in self._entries.values()]
            return CacheState(
                bytes=self._used,
                resident=states.count("resident"),
                loading=states.count("loading"),
                known=len(self._known),
                loads=self._loads,
                evictions=self._evictions,
                failures=self._failures,
            )

    def close(self) -> None:
        """Unload all tasks, those in use once they are released; waiting queries get Unavailable."""
        with self._changed:
            self._closed = True
            leaving = [entry for entry in list(self._entries.values()) if self._retire(entry)]
            self._changed.notify_all()
        self._unload_all(leaving)
        self._pool.shutdown(wait=True)

    def _load_entry(self, entry: Entry[Handle]) -> None:
        """Load a task and complete the futures of the queries that wait for it; runs on a loader thread."""
        reserved = False
        try:
            if self._closed:
                raise model_stops()
            task = self._read(entry.name)
            self._reserve(entry, task.bytes)
            reserved = True
            handle = self._load(task)
        except Exception as error:  # waiters get an answer for every kind of failure
            if not isinstance(error, TidalError):
                error = Internal(f"task '{entry.name}' could not be loaded: {type(error).__name__}: {error}")
            with self._changed:
                if reserved:
                    self._used -= entry.bytes
                # Without its traceback, which references the task's arrays.
                entry.state, entry.error = "failed", error.with_traceback(None)
                self._failures += 1
                waiters = self._waiters(entry)
                self._changed.notify_all()
        else:
            with self._changed:
                entry.state, entry.handle = "resident", handle
                self._loads += 1
                waiters = self._waiters(entry)
                entry.pins += len(waiters) + 1  # one for this thread, until all waiters have their lease
        for waiter in waiters:
            self._answer(entry, waiter)
        if entry.state == "resident":
            self._release(entry)

    def _waiters(self, entry: Entry[Handle]) -> list[Future[Lease[Handle]]]:
        # Drops waiters that were cancelled; from here on no other can be.
        waiters = [waiter for waiter in entry.waiters if waiter.set_running_or_notify_cancel()]
        entry.waiters = []
        return waiters

    def _answer(self, entry: Entry[Handle], waiter: Future[Lease[Handle]]) -> None:
        """Complete a waiter with the task that is pinned for it, or with the reason why it did not load."""
        if entry.error is not None:
            # A new exception per waiter: raising one modifies it.
            waiter.set_exception(type(entry.error)(str(entry.error)))
            return
        waiter.set_result(self._lease(entry))

    def _lease(self, entry: Entry[Handle]) -> Lease[Handle]:
        """Return a lease of a task that is pinned for it."""
        assert entry.handle is not None
        return Lease(entry.handle, lambda: self._release(entry))

    def _reserve(self, entry: Entry[Handle], size: int) -> None:
        """Reserve memory for a task; waits until enough has been freed by evicting least recently used tasks.

        Args:
            entry: Entry of the task.
            size: Size of the task, in bytes.

        Raises:
            InvalidArgument: The task is larger than the budget.
            Unavailable: The cache was closed.
        """
        if size > self._budget:
            raise InvalidArgument(
                f"task '{entry.name}' takes {size} bytes in memory, the model's budget for tasks is {self._budget}"
            )
        leaving: list[Entry[Handle]] = []
        with self._changed:
            self._load_queue.append(entry)
        while True:
            self._unload_all(leaving)
            with self._changed:
                if self._closed:
                    self._load_queue.remove(entry)
                    raise model_stops()
                if self._load_queue[0] is entry:
                    if self._used + size <= self._budget:
                        self._load_queue.popleft()
                        entry.bytes = size
                        self._used += size
                        self._changed.notify_all()
                        return
                    leaving = self._free(self._used + size - self._budget)
                if not leaving:
                    self._changed.wait()

    def _free(self, needed: int) -> list[Entry[Handle]]:
        """Retire tasks until `needed` bytes become free, now or once their queries release them.

        Tasks in use are retired only if the idle ones are not enough.

        Returns:
            The retired entries that can be unloaded now.
        """
        resident = [entry for entry in self._entries.values() if entry.state == "resident"]
        idle = [entry for entry in resident if entry.pins == 0]
        # Tasks that were retired earlier and are still in use will become free as well.
        needed -= self._used - sum(entry.bytes for entry in self._entries.values() if entry.state != "failed")
        leaving: list[Entry[Handle]] = []
        for entry in (*idle, *(entry for entry in resident if entry.pins > 0)):
            if needed <= 0:
                break
            needed -= entry.bytes
            self._evictions += 1
            if self._retire(entry):
                leaving.append(entry)
        return leaving

    def _retire(self, entry: Entry[Handle]) -> bool:
        """Remove an entry from the cache; returns whether it can be unloaded now."""
        if self._entries.get(entry.name) is entry:
            del self._entries[entry.name]
        return entry.state == "resident" and entry.pins == 0

    def _release(self, entry: Entry[Handle]) -> None:
        with self._changed:
            entry.pins -= 1
            retired = self._entries.get(entry.name) is not entry
            leaving = [entry] if retired and entry.pins == 0 else []
            if not retired:
                self._changed.notify_all()  # it can be evicted now
        self._unload_all(leaving)

    def _unload_all(self, leaving: list[Entry[Handle]]) -> None:
        """Unload retired entries that are not in use; called once per entry."""
        for entry in leaving:
            handle, entry.handle = entry.handle, None
            assert handle is not None
            with suppress(Exception):  # its memory counts as free even if the engine fails
                self._unload(handle)
            with self._changed:
                self._used -= entry.bytes
                self._changed.notify_all()
        leaving.clear()
