"""Answers that are returned by `execute` as a list, which costs about half as much as one message per answer.

Triton passes no further requests to a model while its `execute` runs, so the host waits for answers for a bounded time
only, and only while most answers arrive within it: a model whose answers take longer, or do not come, hides its
arrivals from its policy for a small share of the time.
"""

from __future__ import annotations

import threading
from typing import Any

# Longest wait of a call. A call of many requests may wait longer: their answers take longer, and returning them as a
# list saves more.
_WAIT_S = 1e-3
_WAIT_PER_REQUEST_S = 0.3e-3
# Weight of the newest wait in the running share of waits in which all answers arrived.
_WEIGHT = 0.25
# The host waits while that share is at least this, and otherwise in one of so many calls, as a trial.
_SUFFICIENT = 0.5
_TRIAL_EVERY = 16


class ReturnWindow:
    """Decides how long a call of `execute` waits for its answers; used by one thread.

    Only waits are counted: the outcome of an answer that no call waited for is no evidence about waiting.
    """

    def __init__(self) -> None:
        self._share = 1.0
        self._calls = 0

    def wait_s(self, requests: int) -> float:
        """Return the longest time that the next call waits for its answers, in seconds.

        Args:
            requests: Number of its requests that are not answered.
        """
        self._calls += 1
        if self._share < _SUFFICIENT and self._calls % _TRIAL_EVERY:
            return 0.0
        return _WAIT_S + _WAIT_PER_REQUEST_S * requests

    def waited(self, complete: bool) -> None:
        """Record a wait.

        Args:
            complete: Whether all answers arrived within it.
        """
        self._share += (complete - self._share) * _WEIGHT


class AnswerList:
    """Answers of one call of `execute`; any thread adds answers, and the thread of `execute` collects them once.

    Args:
        count: Number of requests of the call.
    """

    __slots__ = ("_answers", "_complete", "_endings", "_lock", "_open", "missing")

    def __init__(self, count: int) -> None:
        self._answers: list[Any] = [None] * count
        self._endings: list[Any] = []
        self._lock = threading.Lock()
        self._complete = threading.Lock()
        self._complete.acquire()
        self._open = True
        self.missing = count
        """Number of requests without an answer."""

    @property
    def open(self) -> bool:
        """Whether the list has not been collected."""
        return self._open

    @property
    def endings(self) -> list[Any]:
        """What was given with the answers in the list, complete after `collect`."""
        return self._endings

    def put(self, index: int, answer: Any, ending: Any = None) -> bool:
        """Add an answer; return False after `collect`, when it has to be sent.

        Args:
            index: Index of the request in its call; each has one answer.
            answer: Triton's response.
            ending: Ending to record when the list is returned; None for nothing.
        """
        with self._lock:
            if not self._open:
                return False
            self._answers[index] = answer
            if ending is not None:
                self._endings.append(ending)
            self.missing -= 1
            complete = not self.missing
        if complete:
            self._complete.release()
        return True

    def collect(self, wait_s: float) -> list[Any]:
        """Wait until all answers are there, for at most `wait_s` seconds, and return those that are there.

        Returns:
            Answers by index; None for each request that will be answered later, by its sender.
        """
        if self.missing and wait_s > 0:
            self._complete.acquire(timeout=wait_s)
        with self._lock:
            self._open = False
        return self._answers


class AnswerSlot:
    """The place of one request's answer: in the list of its call, or sent on its own.

    Args:
        sender: Triton's response sender of the request.
        answers: List of its call; None if the model is decoupled, whose answers are always sent.
        index: Index of the request in the list.
    """

    __slots__ = ("_answers", "_index", "_sender")

    def __init__(self, sender: Any, answers: AnswerList | None = None, index: int = 0) -> None:
        self._sender = sender
        self._answers = answers
        self._index = index

    def answer(self, response: Any, flags: int) -> None:
        """Answer the request, once.

        Args:
            response: Triton's response.
            flags: Flags of Triton that mark the last response.
        """
        if not self.put(response):
            self.send(response, flags)

    @property
    def listed(self) -> bool:
        """Whether an answer given now is likely to be in the list of its call."""
        return self._answers is not None and self._answers.open

    def put(self, response: Any, ending: Any = None) -> bool:
        """Answer the request in the list of its call; return False if the answer has to be sent.

        Args:
            response: Triton's response.
            ending: Ending to record when the list is returned; None for nothing.
        """
        return self._answers is not None and self._answers.put(self._index, response, ending)

    def send(self, response: Any, flags: int) -> None:
        """Send an answer that `put` did not accept; see `answer`."""
        self._sender.send(response, flags=flags)

    def part(self, response: Any) -> None:
        """Send a response before the answer, of a decoupled model."""
        self._sender.send(response)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request; a call to the server process of about 30 µs.

        The request must not have been answered.
        """
        return bool(self._sender.is_cancelled())
