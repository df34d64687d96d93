"""Where queries wait for a level, and the threads that ask it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tidal.service import ServiceContext
from tidal.tabi.jobs import Visit


class Station:
    """One level's queue, first come first served, and up to `slots` threads that work it off, started on demand.

    A visit ends once: `finish`, by the thread that worked on it, or `give_up`, by another that waited long enough.
    A call to a level cannot be interrupted, and one that was in a process which died never returns. So a thread whose
    visit was given up counts no more, and another takes its place: of up to `spare` such threads, since each of them
    also holds one of the server's, which carries answers too. Beyond that the station shrinks, down to nothing.

    Args:
        context: starts threads.
        name: of the threads.
        slots: threads that work at the same time.
        spare: lost threads that are replaced.
        work: handles a visit; called by this station's threads.
        show_lost: told how many threads are lost; returns at once.
    """

    def __init__(
        self,
        context: ServiceContext,
        name: str,
        slots: int,
        spare: int,
        work: Callable[[Visit], None],
        show_lost: Callable[[int], None],
    ) -> None:
        self._context = context
        self._name = name
        self._slots = slots
        self._spare = spare
        self._work = work
        self._show_lost = show_lost
        self._changed = threading.Condition()
        self._queue: deque[Visit] = deque()
        self._threads: set[threading.Thread] = set()
        self._started = 0  # threads that are there, lost ones included
        self._idle = 0
        self._lost = 0
        self._closing = False

    def enter(self, visit: Visit) -> bool:
        """Queue a visit; False when no thread is left, or to be had, that would work on it."""
        with self._changed:
            if self._closing or not self._allowed():
                return False
            self._queue.append(visit)
            try:
                self._staff()
            except (RuntimeError, MemoryError):
                self._queue.remove(visit)
                return False
            return True

    def finish(self, visit: Visit) -> bool:
        """End a visit after its work; False when it was given up meanwhile, and somebody else goes on with it."""
        with self._changed:
            if visit.ended:
                self._lost -= 1
                self._show_lost(self._lost)
                return False
            visit.ended = True
            return True

    def give_up(self, visit: Visit) -> bool:
        """End a visit that takes too long; False when it has ended. The caller goes on with it."""
        with self._changed:
            if visit.ended:
                return False
            visit.ended = True
            if visit.began is not None:
                self._lost += 1
                self._show_lost(self._lost)
                self._staff()
            return True

    def close(self) -> list[threading.Thread]:
        """Let the threads end when nothing waits; which there are."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            return list(self._threads)

    def _allowed(self) -> int:
        return max(0, self._slots - max(0, self._lost - self._spare))

    def _staff(self) -> None:
        """Have a thread for what waits: an idle one, else a new one while there may be more."""
        waiting = len(self._queue)
        if not waiting:
            return
        if self._idle >= waiting:
            self._changed.notify()
        elif self._started - self._lost < self._allowed():
            self._started += 1
            try:
                self._threads.add(self._context.start_thread(self._name, self._run))
            except (RuntimeError, MemoryError):
                self._started -= 1
                if self._started == self._lost:
                    raise  # nobody would come for it
        else:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (visit := self._next()) is not None:
                self._work(visit)
                del visit  # a thread that waits must not keep the last one
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _next(self) -> Visit | None:
        """The next visit to work on; None: the thread is to end, and is not counted any more."""
        with self._changed:
            while True:
                if self._started - self._lost > self._allowed():
                    break
                while self._queue:
                    visit = self._queue.popleft()
                    if not visit.ended:
                        visit.began = time.monotonic()
                        return visit
                if self._closing:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._started -= 1
            return None
