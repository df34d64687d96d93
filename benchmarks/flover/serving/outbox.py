"""Requests in a baseline, and the thread that sends their tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.flover.responder import SendPacer

Ids = npt.NDArray[np.int64]

# Interval at which counts are published while tokens arrive; also when a request ends.
_PUBLISH_INTERVAL_S = 0.1
# Longest delay of a token, as the default of `part_wait_ms`.
_MAX_DELAY_S = 0.1


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
    _begun: bool = False
    _unsent: list[int] = field(default_factory=list)
    _error: str = ""

    @property
    def open(self) -> bool:
        """Whether the request needs more tokens."""
        return self.received < self.wanted and not self._error

    @property
    def urgent(self) -> bool:
        """Whether the next part is the first one or the end, which are sent without delay."""
        return not (self._begun and self.open)

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
    """Sends tokens from one thread, when Tidal would send them: the first one and the end at once, others when due.

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
        self._pacer = SendPacer(_MAX_DELAY_S)
        self._closing = False
        self._published_at = 0.0

    def open(self, sender: Any, prompt: Ids, wanted: int) -> GenerationJob:
        """Create a request."""
        return GenerationJob(prompt, wanted, self, sender)

    def put(self, job: GenerationJob, *tokens: int) -> None:
        """Queue tokens of a request, or its end."""
        with self._changed:
            job._unsent += tokens
            changed = job.urgent or not self._unsent  # else the thread waits until it is due
            self._unsent[job] = None
            if changed:
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
                while not (chosen := self._due()):
                    if self._closing and not self._unsent:
                        return
                    self._changed.wait(max(0.0, self._pacer.due - time.monotonic()) if self._unsent else None)
                parts = []
                for job in chosen:
                    del self._unsent[job]
                    parts.append((job, job._unsent, job.urgent, not job.open))
                    job._unsent, job._begun = [], True
            # Publish before the last response, so that its receiver reads complete counts.
            now, paced = time.monotonic(), 0.0
            if now - self._published_at > _PUBLISH_INTERVAL_S or any(ended for *_, ended in parts):
                self._published_at = now
                self._publish()
            for job, tokens, urgent, ended in sorted(parts, key=lambda part: not part[2]):
                began = time.monotonic()
                if job._error:
                    self._refuse(job._sender, job._error)
                else:
                    self._send(job._sender, tokens, "length" if ended else "")
                paced += 0.0 if urgent else time.monotonic() - began
            if paced:
                ended_at = time.monotonic()
                self._pacer.sent(ended_at - paced, ended_at)

    def _due(self) -> list[GenerationJob]:
        """Requests of which something is to be sent now."""
        if self._closing or time.monotonic() >= self._pacer.due:
            return list(self._unsent)
        return [job for job in self._unsent if job.urgent]
