"""Requests in a baseline, and the thread that sends their tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

# Interval at which counts are published while tokens arrive; also when a request ends.
_PUBLISH_INTERVAL_S = 0.1


@dataclass(eq=False, slots=True)
class GenerationJob:
    """A request in a baseline.

    Attributes:
        prompt: Token ids of the prompt, [tokens].
        wanted: Number of tokens to generate.
        received: Number of tokens received so far.
    """

    prompt: Ids
    wanted: int
    _outbox: Outbox
    _sender: Any
    received: int = 0
    _unsent: list[int] = field(default_factory=list)
    _error: str = ""

    @property
    def open(self) -> bool:
        """Whether the request needs more tokens."""
        return self.received < self.wanted and not self._error

    def add(self, token: int) -> None:
        """Add the next token; ignored once the request is complete."""
        if self.open:
            self.received += 1
            self._outbox.put(self, token)

    def fail(self, message: str) -> None:
        """End the request with an error, if it is open."""
        if self.open:
            self._error = message
            self._outbox.put(self)


class Outbox:
    """Sends tokens from one thread; tokens that arrive faster than they can be sent share a part.

    Args:
        send: Called with a request's sender, tokens and finish reason; "" if it continues.
        refuse: Called with a sender and an error message.
        publish: Publishes the counts of the system.
    """

    def __init__(
        self,
        send: Callable[[Any, list[int], str], None],
        refuse: Callable[[Any, str], None],
        publish: Callable[[], None],
    ) -> None:
        self._send, self._refuse, self._publish = send, refuse, publish
        self._changed = threading.Condition()
        self._unsent: dict[GenerationJob, None] = {}
        self._closing = False
        self._published_at = 0.0

    def open(self, sender: Any, prompt: Ids, wanted: int) -> GenerationJob:
        """Create a request."""
        return GenerationJob(prompt, wanted, self, sender)

    def put(self, job: GenerationJob, *tokens: int) -> None:
        """Queue tokens of a request, or its end."""
        with self._changed:
            job._unsent += tokens
            self._unsent[job] = None
            self._changed.notify()

    def close(self) -> None:
        """Let the thread end once everything is sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        """Send until `close`."""
        while True:
            with self._changed:
                while not (self._unsent or self._closing):
                    self._changed.wait()
                if not self._unsent:
                    return
                unsent, self._unsent = self._unsent, {}
                parts = []
                for job in unsent:
                    parts.append((job, job._unsent, not job.open))
                    job._unsent = []
            # Publish before the last response, so that its receiver reads complete counts.
            now = time.monotonic()
            if now - self._published_at > _PUBLISH_INTERVAL_S or any(ended for _, _, ended in parts):
                self._published_at = now
                self._publish()
            for job, tokens, ended in parts:
                if job._error:
                    self._refuse(job._sender, job._error)
                else:
                    self._send(job._sender, tokens, "length" if ended else "")
