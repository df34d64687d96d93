"""Keeping a service running: one at a time, a fresh one after a failure, none after the end."""

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

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# A service that has run this long has recovered: its next failure is answered by an immediate restart again.
_HEALTHY_S = 10.0
# What closing may take beyond the time that it is given.
_CLOSE_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Failures:
    """Failures in a row, and how long to wait after them before the next start."""

    count: int = 0

    def after_running(self, seconds: float) -> _Failures:
        """One more failure, of a service that ran this long; 0 when it did not even start."""
        return _Failures(1 if seconds >= _HEALTHY_S else self.count + 1)

    @property
    def pause_s(self) -> float:
        """None after the first failure, then doubling."""
        return 0.0 if self.count <= 1 else backoff_s(self.count - 2, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)


class _Life:
    """One service from its start to its failure or end; what tells a late report of an old one from the present."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.service: Service | None = None


class ServiceKeeper:
    """Runs a service and replaces it when it fails.

    A failure is an exception out of `submit` or a thread's report through `ServiceContext.failed`. Everything open is
    then failed with the cause, the service is closed, and another is started: at once, then with growing pauses.

    Args:
        context: the model's context; every service gets it with a `failed` of its own.
        start: starts a service.
        fail_all: answers every open request with an error.

    Raises:
        Exception: the first service did not start.
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
        self._restarts = context.metrics.counter("service_restarts_total", "Services started anew after a failure")
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._failures = _Failures()
        self._cause = ""
        # The restart that is to begin; stays while no thread can be started for it.
        self._due: Callable[[], None] | None = None
        self._life = _Life()
        self._run(self._life)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Hand requests to the service; they are failed when there is none or it fails at it."""
        life = self._life
        service = life.service
        if service is not None:
            try:
                service.submit(requests)
            except BaseException as error:
                self._failed(life, error)
            if life is self._life:
                return
        else:
            self._begin_restart()
        # None runs, or it failed meanwhile: then it may have got these after everything open was failed.
        for request in requests:
            request.fail(self._absent())

    def close(self, timeout_s: float) -> None:
        """End the service, within about `timeout_s` seconds; none is started any more."""
        with self._lock:
            self._ending.set()
            life, self._life = self._life, _Life()
            due, self._due = self._due, None
        if due is not None:
            due()  # at the end it closes the service that failed and starts none
        self._close(life.service, timeout_s)

    def _absent(self) -> TidalError:
        if self._ending.is_set():
            return Unavailable("the model is being unloaded; send the request again")
        return Unavailable(f"the model is restarting after a failure ({self._cause}); try again")

    def _run(self, life: _Life) -> None:
        """Start a service for this life; it is closed at once when the life is over by then.

        Raises:
            Exception: whatever hindered the start.
        """
        service = self._start(dataclasses.replace(self._context, failed=partial(self._failed, life)))
        with self._lock:
            current = life is self._life
            if current:
                life.service = service
        if not current:
            self._close(service, 0.0)

    def _failed(self, life: _Life, error: BaseException) -> None:
        """The service of this life failed: answer what is open, and start another."""
        with self._lock:
            if life is not self._life or self._ending.is_set():
                return
            self._cause = f"{type(error).__name__}: {error}"
            self._failures = self._failures.after_running(time.monotonic() - life.began if life.service else 0.0)
            self._life = _Life()
            self._due = partial(self._restart, life.service, self._life, self._failures.pause_s)
        self._begin_restart()
        self._restarts.inc()
        self._fail_all(Internal(f"the model failed: {self._cause}"))
        self._log.error("the service failed: %s", self._cause, exc_info=error)

    def _begin_restart(self) -> None:
        """Begin the restart that is due, if one is; without a thread to be had it stays due until the next request."""
        with self._lock:
            if self._due is None:
                return
            try:
                # A thread of its own: closing and starting may take long, and the caller has other things to do.
                threading.Thread(target=self._due, name=f"{self._context.model}-restart", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                self._log.error("the restart did not begin, the next request tries again: %s", error)
            else:
                self._due = None

    def _restart(self, old: Service | None, life: _Life, pause_s: float) -> None:
        self._close(old, 0.0)
        if self._ending.wait(pause_s):
            return
        life.began = time.monotonic()
        try:
            self._run(life)
        except BaseException as error:
            self._failed(life, error)
        else:
            self._log.warning("a fresh service runs (failure %d: %s)", self._failures.count, self._cause)

    def _close(self, service: Service | None, timeout_s: float) -> None:
        """Close a service, and go on without it when it does not keep to its time: it may hang, the model must not."""
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
            close()  # no thread can be had: closing that may hang is better than none
            return
        closing.join(timeout_s + _CLOSE_GRACE_S)
        if closing.is_alive():
            self._log.error("the service did not close within %g s: its threads are left behind", timeout_s)
