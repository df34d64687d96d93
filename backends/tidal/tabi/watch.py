"""A clock that rings for visits which take too long."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections.abc import Callable

from tidal.service import ServiceContext
from tidal.tabi.jobs import Visit


class Watch:
    """One thread that calls `late` for every visit whose time has come; those that ended before are forgotten.

    Args:
        context: starts the thread.
        late: called by that thread, with visits that may have ended by then.
    """

    def __init__(self, context: ServiceContext, late: Callable[[Visit], None]) -> None:
        self._late = late
        self._changed = threading.Condition()
        # Visits are held weakly: one that has ended goes although its time is far away.
        self._due: list[tuple[float, int, weakref.ref[Visit]]] = []
        self._order = itertools.count()
        self._ending = False
        self._thread = context.start_thread("watch", self._run)

    def add(self, visit: Visit) -> None:
        """Ring for a visit at its `until`."""
        with self._changed:
            heapq.heappush(self._due, (visit.until, next(self._order), weakref.ref(visit)))
            if self._due[0][0] == visit.until:
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """End the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._ending:
                    return
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(self._due[0][0] - now if self._due else None)
                    continue
                visit = heapq.heappop(self._due)[2]()
            if visit is not None:
                self._late(visit)
                del visit
