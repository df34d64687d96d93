"""Threads of a service: one that answers while others run, and waiting for threads until a common time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tidal.service import ServiceContext

Finished = TypeVar("Finished")
# Longest time in seconds that a thread which accepts requests waits for answers, see `AnswerThread.drain`.
DRAIN_S = 0.02


class AnswerThread(Generic[Finished]):
    """A thread that answers finished work, in order, so that the thread that ran it can run the next batch.

    Args:
        context: Context that the service was started with.
        answer: Answers one item; an exception that it raises ends the service.
    """

    def __init__(self, context: ServiceContext, answer: Callable[[Finished], None]) -> None:
        self._answer = answer
        self._changed = threading.Condition()
        self._open = 0  # number of items that are queued or being answered
        self._finished: queue.SimpleQueue[tuple[Finished] | None] = queue.SimpleQueue()
        self._thread = context.start_thread("responder", self._run)

    def put(self, finished: Finished) -> None:
        """Queue an item to be answered; does not wait."""
        with self._changed:
            self._open += 1
        self._finished.put((finished,))

    def answer_here(self, finished: Finished) -> None:
        """Answer an item in the calling thread."""
        with self._changed:
            self._open += 1
        self._answer_one(finished)

    def drain(self, timeout_s: float) -> None:
        """Wait until all items are answered.

        For threads that accept requests. While answers are slower than the engine, requests that are accepted later are
        answered no later: they arrive in larger numbers, and `execute` can return their answers as a list.

        Args:
            timeout_s: Seconds to wait for at most.
        """
        if self._open:
            with self._changed:
                self._changed.wait_for(lambda: not self._open, timeout_s)

    def close(self, until: float) -> None:
        """Answer what is queued, then end the thread.

        Args:
            until: Latest `time.monotonic()` to wait for, in seconds.
        """
        self._finished.put(None)
        join_until(until, [self._thread])

    def _run(self) -> None:
        while (item := self._finished.get()) is not None:
            self._answer_one(item[0])

    def _answer_one(self, finished: Finished) -> None:
        self._answer(finished)
        with self._changed:
            self._open -= 1
            if not self._open:
                self._changed.notify_all()


def remaining_s(until: float) -> float:
    """Return the seconds until a `time.monotonic()`, 0 if it has passed."""
    return max(0.0, until - time.monotonic())


def join_until(until: float, threads: Iterable[threading.Thread]) -> None:
    """Wait for threads to end, all together until a `time.monotonic()`."""
    for thread in threads:
        thread.join(remaining_s(until))
