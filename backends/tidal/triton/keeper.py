"""Keep one service running: start it, replace it after a failure, and close it at the end."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidal.errors import Internal, TidalError, Unavailable
from tidal.requests import PendingRequest
from tidal.service import Service, ServiceContext
from tidal.serving.backoff import backoff_s
from tidal.serving.endings import model_stops

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# A service that has run this long has recovered: after its next failure the restart is immediate again.
_HEALTHY_S = 10.0
# Time that closing may take beyond its timeout.
_CLOSE_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Failures:
    """Failures in a row, and the pause before the next start.

    Attributes:
        count: Number of failures in a row.
    """

    count: int = 0

    def after_running(self, seconds: float) -> _Failures:
        """Add a failure of a service that ran for some seconds; 0 if it did not start."""
        return _Failures(1 if seconds >= _HEALTHY_S else self.count + 1)

    @property
    def pause_s(self) -> float:
        """Pause before the next start, in seconds: 0 after the first failure, then doubling."""
        return 0.0 if self.count <= 1 else backoff_s(self.count - 2, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)


class _ServiceRun:
    """One service from its start to its failure or end; identifies which service a late report is about."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.service: Service | None = None


class ServiceKeeper:
    """Runs a service and replaces it when it fails.

    A failure is an exception from `submit` or a report through `ServiceContext.failed`. All open requests are then
    failed with the cause, the service is closed, and another is started, at once and then with growing pauses.

    Args:
        context: Context of the model; every service gets it with its own `failed`.
        start: Starts a service.
        fail_all: Answers every open request with an error.

    Raises:
        Exception: The first service did not start.
    """

    def __init__(
        self,
        context: ServiceContext,
        start: Callable[[ServiceContext], Service],
        fail_all: Callable[[TidalError], None],
    ) -> None:
        self._context = context
        self._start = start
        self._fail_all = fail_all
        self._log: logging.Logger = context.log
        self._restarts = context.metrics.counter("service_restarts_total", "Services restarted after a failure")
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._failures = _Failures()
        self._cause = ""
        # The next restart; kept while no thread can be started for it.
        self._due: Callable[[], None] | None = None
        self._current = _ServiceRun()
        self._start_service(self._current)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Pass requests to the service; they are failed if none runs or if it raises."""
        run = self._current
        service = run.service
        if service is not None:
            try:
                service.submit(requests)
            except BaseException as error:
                self._failed(run, error)
            if run is self._current:
                return
        else:
            self._begin_restart()
        # None runs, or it failed meanwhile and may have got these after all open requests were failed.
        for request in requests:
            request.fail(self._absent())

    def close(self, timeout_s: float) -> None:
        """End the service within about `timeout_s` seconds, and start no other."""
        with self._lock:
            self._ending.set()
            run, self._current = self._current, _ServiceRun()
            due, self._due = self._due, None
        if due is not None:
            due()  # closes the service that failed, and starts none because `_ending` is set
        self._close(run.service, timeout_s)

    def _absent(self) -> TidalError:
        if self._ending.is_set():
            return model_stops()
        return Unavailable(f"the model is restarting after a failure ({self._cause}); try again")

    def _start_service(self, run: _ServiceRun) -> None:
        """Start a service; it is closed at once if its run has ended meanwhile.

        Raises:
            Exception: The service did not start.
        """
        service = self._start(dataclasses.replace(self._context, failed=partial(self._failed, run)))
        with self._lock:
            current = run is self._current
            if current:
                run.service = service
        if not current:
            self._close(service, 0.0)

    def _failed(self, run: _ServiceRun, error: BaseException) -> None:
        """Answer the open requests after a service failed, and start another."""
        with self._lock:
            if run is not self._current or self._ending.is_set():
                return
            self._cause = f"{type(error).__name__}: {error}"
            self._failures = self._failures.after_running(time.monotonic() - run.began if run.service else 0.0)
            self._current = _ServiceRun()
            self._due = partial(self._restart, run.service, self._current, self._failures.pause_s)
        self._begin_restart()
        self._restarts.inc()
        self._fail_all(Internal(f"the model failed: {self._cause}"))
        self._log.error("the service failed: %s", self._cause, exc_info=error)

    def _begin_restart(self) -> None:
        """Begin a due restart; if no thread can be started it stays due until the next request."""
        with self._lock:
            if self._due is None:
                return
            try:
                # Its own thread: closing and starting may take long, and the caller must not wait.
                threading.Thread(target=self._due, name=f"{self._context.model}-restart", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                self._log.error("the restart did not begin; the next request tries again: %s", error)
            else:
                self._due = None

    def _restart(self, old: Service | None, run: _ServiceRun, pause_s: float) -> None:
        self._close(old, 0.0)
        if self._ending.wait(pause_s):
            return
        run.began = time.monotonic()
        try:
            self._start_service(run)
        except BaseException as error:
            self._failed(run, error)
        else:
            self._log.warning("a new service runs after failure %d: %s", self._failures.count, self._cause)

    def _close(self, service: Service | None, timeout_s: float) -> None:
        """Close a service, and abandon it if it does not close in time, so that the model does not hang with it."""
        if service is None:
            return

        def close() -> None:
            try:
                service.close(timeout_s)
            except BaseException:
                self._log.exception("the service did not close")

        closing = threading.Thread(target=close, name=f"{self._context.model}-close", daemon=True)
        try:
            closing.start()
        except (RuntimeError, MemoryError):
            close()  # no thread can be started: closing that may hang is better than not closing
            return
        closing.join(timeout_s + _CLOSE_GRACE_S)
        if closing.is_alive():
            self._log.error("the service did not close within %g s; its threads are abandoned", timeout_s)
