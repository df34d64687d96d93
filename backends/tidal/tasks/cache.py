"""Which tasks are in memory: they load on first use, in the background, and the least recently used leaves.

A task is *resident* from the moment it is loaded until it is unloaded, and its bytes count for all that time. One that
is in use is pinned and never unloaded. Where everything that could leave is in use, the least recently used task is
retired: whoever has it keeps it, whoever asks for it anew waits behind the task that needs its room. So a budget
smaller than what is asked for is shared in turn, and no task waits for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic

from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.tasks.folder import Stamp
from tidal.tasks.lease import CacheState, Entry, Handle, Lease, Task
from tidal.tasks.names import unknown_task

_LEAVING = "the model is leaving"


class TaskCache(Generic[Task, Handle]):
    """The tasks of one model in memory. All methods may be called from any thread, and none waits for a load.

    `read` and `load` run on the cache's own threads; `unload` on those or on whichever thread releases a task, so it
    has to be quick. A failure of `load` has to leave nothing behind.
    """

    def __init__(
        self,
        read: Callable[[str], Task],
        load: Callable[[Task], Handle],
        unload: Callable[[Handle], None],
        budget: int,
        loaders: int = 2,
    ) -> None:
        """Start with no task known; see `update`.

        Args:
            read: a task by name from its folder, verified.
            load: puts a task into the engine; what it returns is what queries use, and of the task no more is kept.
            unload: takes it out.
            budget: bytes that the tasks' terms may take.
            loaders: threads that load.
        """
        self._read, self._load, self._unload = read, load, unload
        self._budget = budget
        self._changed = threading.Condition()
        self._known: dict[str, Stamp] = {}
        # By name, least recently used first; entries that were retired are no longer here.
        self._entries: dict[str, Entry[Handle]] = {}
        # Loads that wait for room, first come first served.
        self._turns: deque[Entry[Handle]] = deque()
        self._used = self._loads = self._evictions = self._failures = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(loaders, "task-loader")

    def update(self, known: Mapping[str, Stamp]) -> None:
        """Say which tasks there are, as `scan` found them.

        A task that is gone or has changed leaves as soon as no query uses it; one that failed is tried again once its
        files have changed.
        """
        with self._changed:
            self._known = dict(known)
            changed = [entry for entry in self._entries.values() if self._known.get(entry.name) != entry.stamp]
            leaving = [entry for entry in changed if self._retire(entry)]
        self._take_out(leaving)

    def names(self) -> list[str]:
        """Tasks that there are."""
        with self._changed:
            return list(self._known)

    def knows(self, name: str) -> bool:
        """Whether there is a task of this name."""
        with self._changed:
            return name in self._known

    def acquire(self, name: str) -> Future[Lease[Handle]]:
        """Use a task: done at once if it is in memory, else when it is. Cancel the future to no longer wait for it.

        The future's error is what kept the task from loading: an InvalidArgument for a task that is refused or is
        larger than the budget.

        Raises:
            InvalidArgument: there is no such task; names close ones.
            Unavailable: the cache is closed.
        """
        future: Future[Lease[Handle]] = Future()
        known = self._known  # replaced whole, never changed
        if name not in known:
            raise unknown_task(name, known)  # slow, so outside of the lock
        with self._changed:
            if self._closed:
                raise Unavailable(_LEAVING)
            stamp = self._known.get(name, known[name])
            entry = self._entries.pop(name, None)
            if entry is None:
                entry = Entry(name, stamp)
                self._pool.submit(self._bring, entry)
            self._entries[name] = entry  # the most recently used now
            if entry.state == "loading":
                entry.waiters.append(future)
                return future
            if entry.state == "resident":
                entry.pins += 1
        self._answer(entry, future)
        return future

    def state(self) -> CacheState:
        """What is in memory now."""
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
        """Take everything out that no query uses, and the rest as queries release it; waiters get Unavailable."""
        with self._changed:
            self._closed = True
            leaving = [entry for entry in list(self._entries.values()) if self._retire(entry)]
            self._changed.notify_all()
        self._take_out(leaving)
        self._pool.shutdown(wait=True)

    def _bring(self, entry: Entry[Handle]) -> None:
        """Load a task and answer who waits for it; runs on a loader."""
        reserved = False
        try:
            if self._closed:
                raise Unavailable(_LEAVING)
            task = self._read(entry.name)
            self._reserve(entry, task.bytes)
            reserved = True
            handle = self._load(task)
        except Exception as error:  # whatever it was, waiters get an answer
            if not isinstance(error, TidalError):
                error = Internal(f"task '{entry.name}' could not be loaded: {type(error).__name__}: {error}")
            with self._changed:
                if reserved:
                    self._used -= entry.bytes
                # Without its traceback, which holds the task's arrays.
                entry.state, entry.error = "failed", error.with_traceback(None)
                self._failures += 1
                waiters = self._waiters(entry)
                self._changed.notify_all()
        else:
            with self._changed:
                entry.state, entry.handle = "resident", handle
                self._loads += 1
                waiters = self._waiters(entry)
                entry.pins += len(waiters) + 1  # one for this thread, until all have their answer
        for waiter in waiters:
            self._answer(entry, waiter)
        if entry.state == "resident":
            self._release(entry)

    def _waiters(self, entry: Entry[Handle]) -> list[Future[Lease[Handle]]]:
        # Running now: a waiter that was cancelled before is left out, and none can be from here on.
        waiters = [waiter for waiter in entry.waiters if waiter.set_running_or_notify_cancel()]
        entry.waiters = []
        return waiters

    def _answer(self, entry: Entry[Handle], waiter: Future[Lease[Handle]]) -> None:
        """Give a waiter the task that is pinned for it, or what kept it from loading."""
        if entry.error is not None:
            # One for each: raising adds to an exception.
            waiter.set_exception(type(entry.error)(str(entry.error)))
            return
        assert entry.handle is not None
        waiter.set_result(Lease(entry.handle, lambda: self._release(entry)))

    def _reserve(self, entry: Entry[Handle], size: int) -> None:
        """Count a task's bytes once there is room for them: what was used least recently leaves.

        Raises:
            InvalidArgument: it is larger than the whole budget.
            Unavailable: the cache was closed.
        """
        if size > self._budget:
            raise InvalidArgument(
                f"task '{entry.name}' takes {size} bytes in memory, the model's budget for tasks is {self._budget}"
            )
        leaving: list[Entry[Handle]] = []
        with self._changed:
            self._turns.append(entry)
        while True:
            self._take_out(leaving)
            with self._changed:
                if self._closed:
                    self._turns.remove(entry)
                    raise Unavailable(_LEAVING)
                if self._turns[0] is entry:
                    if self._used + size <= self._budget:
                        self._turns.popleft()
                        entry.bytes = size
                        self._used += size
                        self._changed.notify_all()
                        return
                    leaving = self._make_room(self._used + size - self._budget)
                if not leaving:
                    self._changed.wait()

    def _make_room(self, needed: int) -> list[Entry[Handle]]:
        """Retire tasks until `needed` bytes leave, now or once nobody uses them; those to take out now.

        What is in use is retired only where the rest is not enough.
        """
        resident = [entry for entry in self._entries.values() if entry.state == "resident"]
        idle = [entry for entry in resident if entry.pins == 0]
        # What was retired before and is still in use leaves too, in time.
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
        """Have nobody find an entry any more; whether it can be taken out now."""
        if self._entries.get(entry.name) is entry:
            del self._entries[entry.name]
        return entry.state == "resident" and entry.pins == 0

    def _release(self, entry: Entry[Handle]) -> None:
        with self._changed:
            entry.pins -= 1
            retired = self._entries.get(entry.name) is not entry
            leaving = [entry] if retired and entry.pins == 0 else []
            if not retired:
                self._changed.notify_all()  # it could leave now
        self._take_out(leaving)

    def _take_out(self, leaving: list[Entry[Handle]]) -> None:
        """Unload retired entries that nobody uses; each is given to this once."""
        for entry in leaving:
            handle, entry.handle = entry.handle, None
            assert handle is not None
            with suppress(Exception):  # its room counts as free whatever the engine says
                self._unload(handle)
            with self._changed:
                self._used -= entry.bytes
                self._changed.notify_all()
        leaving.clear()
