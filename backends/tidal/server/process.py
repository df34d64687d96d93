"""One tritonserver process: start it, wait for it, stop it, and clean up after it."""

from __future__ import annotations

import ctypes
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tidal.access_log.target import ACCESS_LOG_VARIABLE, inherited
from tidal.errors import Internal
from tidal.repository.allocation import ALLOCATION_VARIABLE
from tidal.server.cleanup import clean_up
from tidal.server.control import ModelState
from tidal.server.endpoints import listens
from tidal.server.exit_watch import ExitWatch
from tidal.server.launch import Launch
from tidal.server.protection import raise_stack_limit

# Time beyond its own exit timeout after which the server is killed.
KILL_AFTER_S = 5.0
# Longest wait for metrics after the server answers.
_METRICS_S = 5.0
# Between two checks whether a server that is shutting down is idle.
_POLL_S = 0.25
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl
# Number of bytes at the end of a log that are searched for its last error.
_READ_BYTES = 1 << 20
_ERROR_LINE = re.compile(r"E\d{4} |[Ee]rror|.*unrecognized option|.*error while loading")


class ServerProcess:
    """A started tritonserver."""

    def __init__(self, launch: Launch, log: Path | None, *, append: bool = False) -> None:
        """Start the server.

        Args:
            launch: Everything that it is started with.
            log: File for its log; None for stderr.
            append: Whether to append to the file.
        """
        self.launch = launch
        self.log = log
        self.was_idle = False
        self.control = launch.control()
        self.log_begins = log.stat().st_size if append and log is not None and log.exists() else 0
        output = log.open("ab" if append else "wb") if log is not None else None
        try:
            self._process = subprocess.Popen(
                launch.command(),
                env=_environment(launch),
                pass_fds=inherited(launch.access_log),
                stdin=subprocess.DEVNULL,
                stdout=output or sys.stderr,
                stderr=subprocess.STDOUT,
                # Ctrl-C at a terminal is for this process, which forwards it; stubs must run on to answer.
                start_new_session=True,
                preexec_fn=partial(_prepare, launch.protection.stack_bytes),  # noqa: PLW1509  (it acquires no lock)
            )
        finally:
            if output is not None:
                output.close()

    @property
    def pid(self) -> int:
        """Process id of tritonserver."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while the server runs."""
        return self._process.poll()

    def wait_live(self, stop: threading.Event, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until the server answers, which it does after it tried to load every model, and has opened all ports.

        Args:
            stop: Event that ends the wait.
            meanwhile: Called several times per second.

        Returns:
            Whether the server answered before `stop` was set.

        Raises:
            Internal: The server ended; the message has the last error line of its log.
        """
        endpoints, live_since = self.launch.endpoints, math.inf
        while not stop.wait(0.1):
            if self.exit_status() is not None:
                raise Internal(f"tritonserver ended while starting ({self.ending()}): {self._last_error()}")
            live = self.control.live()
            meanwhile()
            if live:
                # The port of metrics is opened last: what read them at once was refused.
                live_since = min(live_since, time.monotonic())
                late = time.monotonic() - live_since > _METRICS_S  # the server may have none
                if late or listens(endpoints.address(endpoints.metrics)):
                    return True
        return False

    def failed_models(self) -> list[ModelState]:
        """Models that were to be served and do not serve, each with Triton's reason."""
        index = self.control.index()
        ready = {row.name for row in index if row.state == "READY"}
        failed = []
        for name in self.launch.models:
            if name not in ready:
                rows = [row for row in index if row.name == name]
                failed.append(rows[-1] if rows else ModelState(name, 0, "UNAVAILABLE", self._last_error()))
        return failed

    def end(self, now: threading.Event) -> bool:
        """Stop it: drain requests in flight, then kill it after the timeout.

        Args:
            now: Event that kills it at once.

        Returns:
            Whether it ended by itself. If not, `was_idle` is whether it had answered every request and unloaded every
            model before.
        """
        if self._process.poll() is None:
            self._process.terminate()
        deadline = time.monotonic() + self.launch.exit_timeout_s + KILL_AFTER_S
        exit_watch, next_poll_s = ExitWatch(self.pid, self.launch.endpoints.address(self.launch.endpoints.metrics)), 0.0
        while self._process.poll() is None and time.monotonic() < deadline and not now.is_set():
            time.sleep(0.05)
            if time.monotonic() >= next_poll_s:
                if exit_watch.idle(time.monotonic()):
                    self.was_idle = True
                    break
                next_poll_s = time.monotonic() + _POLL_S
        by_itself = self._process.poll() is not None
        if not by_itself:
            self._process.kill()
        self._process.wait()
        clean_up(self.launch.shm_prefix)
        return by_itself

    def kill(self) -> None:
        """Kill the server at once and clean up: no client uses it yet, so no request is in flight."""
        self._process.kill()
        self._process.wait()
        clean_up(self.launch.shm_prefix)

    def ending(self) -> str:
        """How the server ended, as the end of a sentence."""
        status = self._process.poll()
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}"

    def _last_error(self) -> str:
        if self.log is None:
            return "see its log above"
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.log_begins, self.log.stat().st_size - _READ_BYTES))
                text = file.read().decode(errors="replace")
        except OSError as error:
            return f"its log {self.log} cannot be read: {error.strerror}"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR_LINE.match(line)]
        found = errors[-1] if errors else (lines[-1] if lines else "it wrote no log")
        return re.sub(r"^[A-Z]\d{4} \S+ \d+ [\w.]+:\d+\] ", "", found)[:500]


def _environment(launch: Launch) -> dict[str, str]:
    environment = {**launch.environment(), ALLOCATION_VARIABLE: "file"}
    environment.pop(ACCESS_LOG_VARIABLE, None)
    return environment if launch.access_log is None else {**environment, ACCESS_LOG_VARIABLE: launch.access_log}


def end_with_parent() -> None:
    """Let this process, which has just been forked, get SIGTERM when its parent ends, even if that is killed."""
    _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _prepare(stack_bytes: int | None) -> None:
    """In the child process, where other threads' locks may stay held."""
    end_with_parent()
    if stack_bytes is not None:
        raise_stack_limit(stack_bytes)
