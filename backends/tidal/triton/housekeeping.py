"""Background thread of the host: publishes metrics, and fails late and dropped requests."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable

import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.errors import Internal, Unavailable
from tidal.serving.endings import deadline_passed
from tidal.triton.answer_list import AnswerSlot
from tidal.triton.errors import error_response
from tidal.triton.metrics import MetricsPublisher
from tidal.triton.outstanding import Outstanding

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_PUBLISH_EVERY_S = 0.2
# Publishing is slow on a busy machine, whose cores are needed for queries: it takes at most this share of the time.
_PUBLISH_SHARE = 0.02
# Autoscaling must not wait for minutes because the first publication, of all series, took seconds.
_PUBLISH_AT_LEAST_EVERY_S = 5.0
# The service refuses most late queries itself; this leaves it time to do so.
_GRACE_S = 0.005
# Time that the thread waits at its end for requests that other threads are dropping.
_LINGER_S = 2.0


class Housekeeping:
    """Watches deadlines, answers dropped requests, and publishes metrics every 200 ms, or less often if that is slow.

    Other threads only put items into a queue, which is safe everywhere, also inside an object's `__del__`. The thread
    never waits for a service, so a service cannot block it.

    Args:
        publisher: Publishes the metrics.
        outstanding: Collection of the accepted requests.
        answer_timeout_s: Seconds without progress after which a request is failed.
        log: Logger of the model.
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
        # When deadlines are checked next, and whether an earlier deadline has been added.
        self._check_at = math.inf
        self._woken = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Wait until every open request is answered, publish a last time and end the thread.

        All open requests must have been failed before; this waits only for those that are being dropped right now.
        """
        self._inbox.put(self._stop)
        self._thread.join()

    def watch(self, deadline: float) -> None:
        """Fail an open request when its deadline passes without an answer.

        Wakes the thread only for a deadline earlier than all others, so that most requests cost a comparison.

        Args:
            deadline: Deadline of the request, by `time.monotonic()`, in seconds.
        """
        if deadline + _GRACE_S < self._check_at:
            self._inbox.put(self._wake)

    def orphaned(self, key: int, slot: AnswerSlot, rows: int, arrival: float, record: RequestRecord | None) -> None:
        """Answer a request that was dropped; see `TritonRequest`."""

        def answer() -> None:
            self._outstanding.answering(rows)
            try:
                slot.answer(error_response(Internal("the model dropped the request without an answer")), _FINAL)
            finally:
                self._outstanding.finished(key, Internal.code, time.monotonic() - arrival, False, record)
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
                wait_s = max(0.0, min(publish_at, self._check_at) - time.monotonic())
                self._guarded(self._inbox.get(timeout=wait_s))
        self._guarded(self._publisher.publish)

    def _expire_old(self) -> None:
        for request in self._outstanding.idle_since(time.monotonic() - self._answer_timeout_s):
            request.fail(Unavailable(f"no answer within answer_timeout_s ({self._answer_timeout_s:g} s)"))

    def _expire_late(self) -> None:
        now = time.monotonic()
        if now < self._check_at and not self._woken:
            return
        # From here to the end every new deadline wakes the thread: the check may miss one that is added during it.
        self._woken = False
        self._check_at = math.inf
        late, earliest = self._outstanding.past_deadline(now - _GRACE_S)
        for request in late:
            request.fail(deadline_passed(request.options.latency_ms, "an answer"))
        self._check_at = earliest + _GRACE_S

    def _wake(self) -> None:
        self._woken = True

    def _stop(self) -> None:
        self._stopping = True

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self._log.exception("a step of housekeeping failed")
