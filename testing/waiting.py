"""Wait for other threads and processes, and make them wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until a condition is true, for at most `seconds`; returns whether it is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Gate:
    """Blocks an engine's batches, from number `first` on, until it is opened."""

    def __init__(self, first: int = 0) -> None:
        self._first, self._open = first, threading.Event()
        self.reached = threading.Event()

    def __call__(self, number: int) -> None:
        if number >= self._first:
            self.reached.set()
            assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()
