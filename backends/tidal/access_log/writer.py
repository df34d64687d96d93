"""Write the request log in a separate thread, so that a slow disk or reader does not delay requests."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

from tidal.access_log.record import RequestRecord, line
from tidal.access_log.target import ACCESS_LOG_VARIABLE, LogTarget
from tidal.metrics import Counter

# Lines are collected for this long before they are written: a busy server wakes the thread ten times per second.
_COLLECT_S = 0.1
_CAPACITY = 10_000
_LAST_LINES_S = 2.0


class AccessLog:
    """The request log of one model's process.

    Lines that cannot be written (a full disk, a slow or closed reader) are dropped and counted; the model's log gets
    one message when this begins and one when it ends.

    Args:
        target: Target of the lines.
        model: Name of the model.
        version: Version of the model.
        log: Logger of the model, for failures of the target.
        dropped: Counter of lines that were not written.
        capacity: Maximum number of lines that wait to be written; further ones are dropped.
    """

    def __init__(
        self,
        target: LogTarget,
        model: str,
        version: int,
        *,
        log: logging.Logger,
        dropped: Counter,
        capacity: int = _CAPACITY,
    ) -> None:
        self._target = target
        self._model = model
        self._version = version
        self._log = log
        self._dropped = dropped
        self._capacity = capacity
        self._answered: deque[tuple[RequestRecord, str, float, float]] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name=f"{model}-access-log", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord, code: str, answered: float) -> None:
        """Log an answered request; returns at once.

        Args:
            record: Record of the request.
            code: `OK` or the code of the error.
            answered: Time of the answer, by `time.monotonic()`, in seconds.
        """
        if len(self._answered) >= self._capacity:
            self._dropped.inc()
            return
        self._answered.append((record, code, answered, time.time()))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write the remaining lines within 2 s, and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._closing.wait(_COLLECT_S)
            self._write_all()
        self._write_all()
        self._target.close()

    def _write_all(self) -> None:
        chunk: list[bytes] = []
        size = 0
        while self._answered:
            record, code, answered, wall = self._answered.popleft()
            text = line(record, model=self._model, version=self._version, code=code, answered=answered, wall=wall)
            if chunk and size + len(text) > self._target.max_bytes:
                self._write(chunk)
                chunk, size = [], 0
            chunk.append(text)
            size += len(text)
        if chunk:
            self._write(chunk)

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._target.write(b"".join(lines))
        except OSError as error:
            self._dropped.inc(len(lines))
            if not self._failing:
                self._log.warning(f"the access log cannot be written: {error}; lines are dropped until it can be")
            self._failing = True
        else:
            if self._failing:
                self._log.warning(f"the access log is written again; {self._dropped.value:.0f} lines were dropped")
            self._failing = False


def open_access_log(model: str, version: int, log: logging.Logger, dropped: Counter) -> AccessLog | None:
    """Return the request log that the environment configures; None if it configures none."""
    target = os.environ.get(ACCESS_LOG_VARIABLE)
    return AccessLog(LogTarget(target), model, version, log=log, dropped=dropped) if target else None
