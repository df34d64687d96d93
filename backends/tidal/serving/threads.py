"""Threads of a service: one that answers while others run, and waiting for threads until a common time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tidal.service import ServiceContext

Finished = TypeVar("Finished")


class AnswerThread(Generic[Finished]):
    """A thread that answers finished work, in order, so that the thread that ran it can run the next batch.

    Args:
        context: Context that the service was started with.
        answer: Answers one item; an exception that it raises ends the service.
    """

    def __init__(self, context: ServiceContext, answer: Callable[[Finished], None]) -> None:
        self._answer = answer
        self._finished: queue.SimpleQueue[tuple[Finished] | None] = queue.SimpleQueue()
        self._thread = context.start_thread("responder", self._run)

    def put(self, finished: Finished) -> None:
        """Queue an item to be answered; does not wait."""
        self._finished.put((finished,))

    def close(self, until: float) -> None:
        """Answer what is queued, then end the thread.

        Args:
            until: Latest `time.monotonic()` to wait for, in seconds.
        """
        self._finished.put(None)
        join_until(until, [self._thread])

    def _run(self) -> None:
        while (item := self._finished.get()) is not None:
            self._answer(item[0])


def remaining_s(until: float) -> float:
    """Return the seconds until a `time.monotonic()`, 0 if it has passed."""
    return max(0.0, until - time.monotonic())


def join_until(until: float, threads: Iterable[threading.Thread]) -> None:
    """Wait for threads to end, all together until a `time.monotonic()`."""
    for thread in threads:
        thread.join(remaining_s(until))
