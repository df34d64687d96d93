"""The queue of calls to each level with its worker threads, and the timer that abandons calls that take too long."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tidal.service import ServiceContext
from tidal.tabi.jobs import LevelCall

Call = TypeVar("Call")


class LevelQueue:
    """One level's first-in, first-out queue, with up to `slots` worker threads that are started on demand.

    A call ends once: by `finish`, from the worker that ran it, or by `abandon`, from another thread.
    A call to a level cannot be interrupted, and one in a process that crashed never returns. So a worker whose call
    was abandoned is lost, and another one replaces it: up to `spare` of them, since each also holds one thread of the
    server, which carries answers too. Beyond that the number of workers shrinks, down to 0.

    Args:
        context: Context that starts threads.
        name: Name of the threads.
        slots: Maximum number of workers that run calls at the same time.
        spare: Maximum number of lost workers that are replaced.
        run: Runs a call; called by the workers.
        report_lost: Receives the number of lost workers; returns at once.
    """

    def __init__(
        self,
        context: ServiceContext,
        name: str,
        slots: int,
        spare: int,
        run: Callable[[LevelCall], None],
        report_lost: Callable[[int], None],
    ) -> None:
        self._context = context
        self._name = name
        self._slots = slots
        self._spare = spare
        self._run_call = run
        self._report_lost = report_lost
        self._changed = threading.Condition()
        self._waiting: deque[LevelCall] = deque()
        self._threads: set[threading.Thread] = set()
        self._started = 0  # existing workers, lost ones included
        self._idle = 0
        self._lost = 0
        self._closing = False

    def add(self, call: LevelCall) -> bool:
        """Queue a call; return False if there is no worker left, and none can be started, to run it."""
        with self._changed:
            if self._closing or not self._allowed():
                return False
            self._waiting.append(call)
            try:
                self._assign_worker()
            except (RuntimeError, MemoryError):
                self._waiting.remove(call)
                return False
            return True

    def finish(self, call: LevelCall) -> bool:
        """End a call that has run; return False if it was abandoned meanwhile, and another thread continues its job."""
        with self._changed:
            if call.ended:
                self._lost -= 1
                self._report_lost(self._lost)
                return False
            call.ended = True
            return True

    def abandon(self, call: LevelCall) -> bool:
        """End a call that takes too long; return False if it has ended. On True the caller continues its job."""
        with self._changed:
            if call.ended:
                return False
            call.ended = True
            if call.started is not None:
                self._lost += 1
                self._report_lost(self._lost)
                self._assign_worker()
            return True

    def close(self) -> list[threading.Thread]:
        """Close the queue: workers exit when it is empty. Return their threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            return list(self._threads)

    def _allowed(self) -> int:
        """Return how many workers may run calls."""
        return max(0, self._slots - max(0, self._lost - self._spare))

    def _assign_worker(self) -> None:
        """Wake an idle worker for the waiting calls, or start one while more are allowed."""
        waiting = len(self._waiting)
        if not waiting:
            return
        if self._idle >= waiting:
            self._changed.notify()
        elif self._started - self._lost < self._allowed():
            self._started += 1
            try:
                self._threads.add(self._context.start_thread(self._name, self._work))
            except (RuntimeError, MemoryError):
                self._started -= 1
                if self._started == self._lost:
                    raise  # no worker would ever run it
        else:
            self._changed.notify()

    def _work(self) -> None:
        try:
            while (call := self._next()) is not None:
                self._run_call(call)
                del call  # an idle worker must not keep the last one
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _next(self) -> LevelCall | None:
        """Return the next call to run; None: the worker has to end, and is not counted any more."""
        with self._changed:
            while True:
                if self._started - self._lost > self._allowed():
                    break
                while self._waiting:
                    call = self._waiting.popleft()
                    if not call.ended:
                        call.started = time.monotonic()
                        return call
                if self._closing:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._started -= 1
            return None


class CallTimer(Generic[Call]):
    """One thread that reports every call that has expired; calls that ended before are dropped.

    Args:
        context: Context that starts the thread.
        expired: Receives, on that thread, expired calls; one may have ended by then.
    """

    def __init__(self, context: ServiceContext, expired: Callable[[Call], None]) -> None:
        self._expired = expired
        self._changed = threading.Condition()
        # Weak references: a call that has ended is freed although it would expire much later.
        self._due: list[tuple[float, int, weakref.ref[Call]]] = []
        self._order = itertools.count()
        self._closing = False
        self._thread = context.start_thread("timer", self._run)

    def add(self, calls: Iterable[tuple[float, Call]]) -> None:
        """Watch calls until they expire.

        Args:
            calls: Calls, each with the `time.monotonic()` at which it expires, in seconds.
        """
        with self._changed:
            earliest = self._due[0][0] if self._due else math.inf
            for expires, call in calls:
                heapq.heappush(self._due, (expires, next(self._order), weakref.ref(call)))
            if self._due and self._due[0][0] < earliest:
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """End the thread, and wait for it for up to `timeout_s` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closing:
                    return
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(self._due[0][0] - now if self._due else None)
                    continue
                call = heapq.heappop(self._due)[2]()
            if call is not None:
                self._expired(call)
                del call
