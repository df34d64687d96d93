"""The host's one background thread: metrics, deadlines that nobody meets, dropped requests, restarts."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from tidal.errors import Internal, Unavailable
from tidal.triton.errors import error_response
from tidal.triton.metrics import MetricsPublisher
from tidal.triton.outstanding import Outstanding
from tidal.triton.request import TritonRequest

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_PUBLISH_EVERY_S = 0.2
# The service refuses a query in time when it can; this is for one that is stuck behind something longer.
_GRACE_S = 0.005

_Action = Callable[[], None]


class Housekeeping:
    """Runs timed actions, and publishes metrics every 200 ms.

    Other threads only put into a queue, which is safe at any point, also inside an object's `__del__`.
    """

    def __init__(
        self,
        publisher: MetricsPublisher,
        outstanding: Outstanding,
        *,
        answer_timeout_s: float,
        log: logging.Logger,
    ) -> None:
        self._publisher = publisher
        self._outstanding = outstanding
        self._answer_timeout_s = answer_timeout_s
        self._log = log
        self._inbox: queue.SimpleQueue[tuple[float, _Action] | None] = queue.SimpleQueue()
        self._timed: list[tuple[float, int, _Action]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish a last time and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def later(self, seconds: float, action: _Action) -> None:
        """Run `action` on this thread after `seconds`."""
        self._inbox.put((time.monotonic() + seconds, action))

    def watch(self, request: TritonRequest) -> None:
        """Fail the request when its deadline has passed and nobody has answered it."""
        assert request.deadline is not None
        reference = weakref.ref(request)

        def expire() -> None:
            late = reference()
            if late is not None and not late.answered:
                late.fail(Unavailable(f"the deadline of {late.options.latency_ms:g} ms passed before an answer"))

        self._inbox.put((request.deadline + _GRACE_S, expire))

    def orphaned(self, key: int, sender: Any, rows: int, arrival: float) -> None:
        """Answer a request that was dropped."""

        def answer() -> None:
            self._outstanding.orphaned(key, rows, time.monotonic() - arrival)
            self._log.error("a request was dropped without an answer")
            sender.send(error_response(Internal("the model dropped the request without an answer")), flags=_FINAL)

        self._inbox.put((0.0, answer))

    def _run(self) -> None:
        publish_at = 0.0
        running = True
        while running:
            now = time.monotonic()
            wake = min(publish_at, self._timed[0][0]) if self._timed else publish_at
            try:
                item = self._inbox.get(timeout=max(0.0, wake - now))
            except queue.Empty:
                pass
            else:
                running = item is not None
                if item is not None:
                    heapq.heappush(self._timed, (item[0], next(self._order), item[1]))
            now = time.monotonic()
            while self._timed and self._timed[0][0] <= now:
                self._guarded(heapq.heappop(self._timed)[2])
            if now >= publish_at or not running:
                self._guarded(self._expire_old)
                self._guarded(self._publisher.publish)
                publish_at = now + _PUBLISH_EVERY_S

    def _expire_old(self) -> None:
        for request in self._outstanding.older_than(time.monotonic() - self._answer_timeout_s):
            request.fail(Unavailable(f"nobody answered within answer_timeout_s ({self._answer_timeout_s:g} s)"))

    def _guarded(self, action: _Action) -> None:
        try:
            action()
        except Exception:
            self._log.exception("housekeeping failed at a step")
