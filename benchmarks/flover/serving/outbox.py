"""Requests on their way through a system, and the thread that sends their tokens as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

# Counts are published so often while tokens come, and when a request ends.
_PUBLISH_INTERVAL_S = 0.1


@dataclass(eq=False, slots=True)
class GenerationJob:
    """A request: a prompt, and how many tokens it wants.

    Attributes:
        prompt: token ids, [tokens].
        wanted: tokens.
        taken: tokens that it has got.
    """

    prompt: Ids
    wanted: int
    _outbox: Outbox
    _sender: Any
    taken: int = 0
    _unsent: list[int] = field(default_factory=list)
    _error: str = ""

    @property
    def open(self) -> bool:
        """Whether tokens are missing."""
        return self.taken < self.wanted and not self._error

    def take(self, token: int) -> None:
        """Give it its next token; one that has what it wants takes no more."""
        if self.open:
            self.taken += 1
            self._outbox.put(self, token)

    def fail(self, message: str) -> None:
        """End it, if it has not ended."""
        if self.open:
            self._error = message
            self._outbox.put(self)


class Outbox:
    """Sends tokens from one thread. Where they come faster than they can be sent, several make one part.

    Args:
        send: takes a request's sender, tokens, and why it ends, or "" where it does not.
        refuse: takes a sender and the message of an error.
        tell: publishes what the system counts.
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
        """A new request."""
        return GenerationJob(prompt, wanted, self, sender)

    def put(self, job: GenerationJob, *tokens: int) -> None:
        """A request has something to send."""
        with self._changed:
            job._unsent += tokens
            self._unsent[job] = None
            self._changed.notify()

    def close(self) -> None:
        """Let the thread end when everything is sent."""
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
            # Who reads counts when the last answer is there finds them complete.
            now = time.monotonic()
            if now - self._published_at > _PUBLISH_INTERVAL_S or any(ended for _, _, ended in parts):
                self._published_at = now
                self._publish()
            for job, tokens, ended in parts:
                if job._error:
                    self._refuse(job._sender, job._error)
                else:
                    self._send(job._sender, tokens, "length" if ended else "")
