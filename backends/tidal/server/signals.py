"""Signals that request a stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_POLL_S = 0.05


class Flag(threading.Event):
    """An event that a signal handler may set: it has no lock, which the interrupted thread could hold."""

    def __init__(self) -> None:
        super().__init__()
        self._on = False

    def set(self) -> None:
        """Set the flag; it is never cleared."""
        self._on = True

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._on

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, or for `timeout` seconds; return whether it is set."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._on and (left := end - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left))
        return self._on


class Signals:
    """SIGINT, SIGTERM and SIGHUP as flags: the first signal requests a stop, the second an immediate one."""

    def __init__(self) -> None:
        self.stop = Flag()
        self.at_once = Flag()

    def receive(self, _number: int, _frame: FrameType | None) -> None:
        """Record a signal."""
        if self.stop.is_set():
            self.at_once.set()
        self.stop.set()


@contextmanager
def handled_signals() -> Iterator[Signals]:
    """Handle signals as requests to stop, until the block ends."""
    signals = Signals()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signals.receive) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
