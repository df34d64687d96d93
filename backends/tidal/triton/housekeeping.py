"""The host's one background thread: metrics, deadlines that nobody meets, dropped requests."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.errors import Internal, Unavailable
from tidal.serving.endings import deadline_passed
from tidal.triton.errors import error_response
from tidal.triton.metrics import MetricsPublisher
from tidal.triton.outstanding import Outstanding

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_PUBLISH_EVERY_S = 0.2
# A busy machine is slow to take metrics, and needs its cores for queries: publishing takes at most this share of time.
_PUBLISH_SHARE = 0.02
# But who scales by them must not wait for minutes because a first time, of all series, took seconds.
_PUBLISH_AT_LEAST_EVERY_S = 5.0
# The service refuses a query in time when it can; this is for one that is stuck behind something longer.
_GRACE_S = 0.005
# At its end the thread waits this long for requests that are being dropped by other threads.
_LINGER_S = 2.0


class Housekeeping:
    """Watches deadlines, answers dropped requests, and publishes metrics: every 200 ms, or less often if that is slow.

    Other threads only put into a queue, which is safe at any point, also inside an object's `__del__`. Nothing here
    waits for a service, so that what a service does cannot stop it.
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
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # When the next deadline is to be looked for, and whether one before that has come.
        self._look_at = math.inf
        self._rung = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let every open request be answered, publish a last time and end the thread.

        What was open must have been failed before; only requests that are being dropped at this moment are waited for.
        """
        self._inbox.put(self._stop)
        self._thread.join()

    def watch(self, deadline: float) -> None:
        """An open request has this deadline (monotonic seconds): fail it when that passes and nobody has answered.

        Wakes the thread only for a deadline before all that it waits for, so that a request costs a comparison.
        """
        if deadline + _GRACE_S < self._look_at:
            self._inbox.put(self._ring)

    def orphaned(self, key: int, sender: Any, rows: int, arrival: float, record: RequestRecord | None) -> None:
        """Answer a request that was dropped."""

        def answer() -> None:
            self._outstanding.answering(rows)
            try:
                sender.send(error_response(Internal("the model dropped the request without an answer")), flags=_FINAL)
            finally:
                self._outstanding.settled(key, Internal.code, time.monotonic() - arrival, False, record)
                self._log.error("a request was dropped without an answer")

        self._inbox.put(answer)

    def _run(self) -> None:
        publish_at = 0.0
        leave_by = math.inf
        while True:
            now = time.monotonic()
            if now >= publish_at:
                self._guarded(self._expire_old)
                self._guarded(self._publisher.publish)
                pause_s = max(_PUBLISH_EVERY_S, (time.monotonic() - now) / _PUBLISH_SHARE)
                publish_at = time.monotonic() + min(pause_s, _PUBLISH_AT_LEAST_EVERY_S)
            self._guarded(self._expire_late)
            if self._stopping:
                leave_by = min(leave_by, now + _LINGER_S)
                if not self._outstanding.requests or now >= leave_by:
                    break
            with contextlib.suppress(queue.Empty):
                wait_s = max(0.0, min(publish_at, self._look_at) - time.monotonic())
                self._guarded(self._inbox.get(timeout=wait_s))
        self._guarded(self._publisher.publish)

    def _expire_old(self) -> None:
        for request in self._outstanding.idle_since(time.monotonic() - self._answer_timeout_s):
            request.fail(Unavailable(f"nobody answered within answer_timeout_s ({self._answer_timeout_s:g} s)"))

    def _expire_late(self) -> None:
        now = time.monotonic()
        if now < self._look_at and not self._rung:
            return
        # From here to the end every new deadline rings: one that comes during the look may not be seen by it.
        self._rung = False
        self._look_at = math.inf
        late, earliest = self._outstanding.past_deadline(now - _GRACE_S)
        for request in late:
            request.fail(deadline_passed(request.options.latency_ms, "an answer"))
        self._look_at = earliest + _GRACE_S

    def _ring(self) -> None:
        self._rung = True

    def _stop(self) -> None:
        self._stopping = True

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self._log.exception("housekeeping failed at a step")
