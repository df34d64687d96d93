"""Signals that ask a run to end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_POLL_S = 0.05


class Flag(threading.Event):
    """An event that a signal handler may set: without a lock, which the thread that it interrupts may hold."""

    def __init__(self) -> None:
        super().__init__()
        self._on = False

    def set(self) -> None:
        """Make it true, for good."""
        self._on = True

    def is_set(self) -> bool:
        """Whether it is true."""
        return self._on

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is true, or so many seconds; whether it is."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._on and (left := end - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left))
        return self._on


class Signals:
    """SIGINT, SIGTERM and SIGHUP as flags: the first asks for an end, the second for an end at once."""

    def __init__(self) -> None:
        self.stop = Flag()
        self.at_once = Flag()

    def receive(self, _number: int, _frame: FrameType | None) -> None:
        """A signal has come."""
        if self.stop.is_set():
            self.at_once.set()
        self.stop.set()


@contextmanager
def handled_signals() -> Iterator[Signals]:
    """Take signals as wishes to end, until the block ends."""
    signals = Signals()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signals.receive) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
