"""The way back of one request's answer."""

from __future__ import annotations

import threading
from typing import Any


class AnswerPath:
    """Takes a request's final response, from any thread; stands in for Triton's response sender.

    A response that is there when `execute` returns goes back as its return value: that costs one message between the
    processes less than a response sender, which is made for the others only.
    """

    __slots__ = ("_lock", "_raw", "_response", "_sender")

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._lock = threading.Lock()
        self._response: Any = None
        self._sender: Any = None

    def send(self, response: Any, flags: int) -> None:
        """Take the final response.

        Raises:
            Exception: Triton's reason; nobody waits for it any more.
        """
        with self._lock:
            if self._sender is None:
                self._response = response
                return
        self._sender.send(response, flags=flags)

    def is_cancelled(self) -> bool:
        """Whether the client has withdrawn the request; not known before `execute` has returned."""
        return self._sender is not None and bool(self._sender.is_cancelled())

    def leave(self) -> Any:
        """At the end of `execute`: the response to return, or None when it will be sent later."""
        with self._lock:
            if self._response is None:
                self._sender = self._raw.get_response_sender()
            self._raw = None
            return self._response
