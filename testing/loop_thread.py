"""A coroutine in an event loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class LoopThread(threading.Thread):
    """Runs a coroutine until it returns, which it does soon after `done` is set.

    Args:
        name: Name of the thread.
        work: Returns the coroutine.

    Attributes:
        done: Event that tells the coroutine to end.
    """

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(name=name)
        self._work = work
        self.done = threading.Event()

    def run(self) -> None:
        """Run the coroutine."""
        asyncio.run(self._work())

    def end(self) -> None:
        """Let the coroutine end, and wait for it."""
        self.done.set()
        self.join()
