"""Decisions about calls to servers: which server, whether to retry, when a client should come back. All are pure."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: Further requests that a server may have in flight before a request with affinity goes to another one.
AFFINITY_SLACK: Final = 4
#: Shortest and longest `Retry-After`, in seconds.
MIN_RETRY_AFTER_S: Final = 1
MAX_RETRY_AFTER_S: Final = 60
# A rate that was measured for less than this is not multiplied.
_SHORTEST_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that could serve a request.

    Attributes:
        address: ``host:port`` of the server.
        outstanding: Number of requests that this gateway has sent to it and that are not answered.
    """

    address: str
    outstanding: int


def choose(candidates: Sequence[Candidate], choices: int, affinity: str = "") -> Candidate | None:
    """Return the server with the fewest outstanding requests; among equal ones they alternate.

    With an affinity the same server is preferred each time (rendezvous hashing), as long as it has at most
    `AFFINITY_SLACK` more outstanding requests than the least busy one.

    Args:
        candidates: Servers that are up and have the model.
        choices: Number of choices so far.
        affinity: Key of what a server may hold in memory, such as a task or the beginning of a prompt; empty for none.

    Returns:
        The chosen server; None without candidates.
    """
    if not candidates:
        return None
    fewest = min(each.outstanding for each in candidates)
    if affinity:
        near = [each for each in candidates if each.outstanding <= fewest + AFFINITY_SLACK]
        return max(near, key=lambda each: _weight(each.address, affinity))
    idle = [each for each in candidates if each.outstanding == fewest]
    return idle[choices % len(idle)]


def _weight(address: str, affinity: str) -> bytes:
    return hashlib.blake2b(f"{address}\0{affinity}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


@dataclass(slots=True)
class RetryBudget:
    """Limits retries to a share of the requests of a window, so that retries cannot multiply the load.

    Attributes:
        ratio: Maximum number of retries per request.
        window_s: Length of the window in seconds.
    """

    ratio: float = 0.1
    window_s: float = 10.0
    _requests: deque[float] = field(default_factory=deque)
    _retries: deque[float] = field(default_factory=deque)

    def sent(self, now: float) -> None:
        """Record a request at time `now`, in seconds."""
        self._requests.append(now)
        self._expire(now)

    def allow(self, now: float) -> bool:
        """Record a retry and return True; False, and nothing recorded, if it exceeds the budget."""
        self._expire(now)
        if len(self._retries) + 1 > self.ratio * len(self._requests):
            return False
        self._retries.append(now)
        return True

    def _expire(self, now: float) -> None:
        for times in (self._requests, self._retries):
            while times and times[0] <= now - self.window_s:
                times.popleft()


@dataclass(slots=True)
class DrainRate:
    """Answers per second while the queue is long; rates under light load do not show capacity.

    Attributes:
        window_s: Length of the window in seconds.
    """

    window_s: float = 10.0
    _answered: deque[float] = field(default_factory=deque)
    _began: float = -math.inf
    _pressed: float = -math.inf

    def pressed(self, now: float) -> None:
        """Record that the queue is long at time `now`, in seconds; the first time after a while starts a period."""
        if now - self._pressed > self.window_s:
            self._answered.clear()
            self._began = now
        self._pressed = now

    def answered(self, now: float) -> None:
        """Record an answer at time `now`, in seconds."""
        self._answered.append(now)
        self._expire(now)

    def per_second(self, now: float) -> float:
        """Answers per second; 0 if there was none in the window."""
        self._expire(now)
        return len(self._answered) / max(_SHORTEST_S, min(self.window_s, now - self._began))

    def silent_s(self, now: float) -> float:
        """Seconds since the last answer, or since the queue is long."""
        return now - max(self._began, self._answered[-1] if self._answered else -math.inf)

    def _expire(self, now: float) -> None:
        while self._answered and self._answered[0] <= now - self.window_s:
            self._answered.popleft()


def retry_after_s(outstanding: int, limit: int, per_second: float, silent_s: float = 0.0) -> int:
    """Return the seconds after which a refused client should retry: half of the queue is answered by then.

    Args:
        outstanding: Number of outstanding requests of the model.
        limit: Maximum number of them.
        per_second: Requests that the model answers per second; 0 if there was no answer yet.
        silent_s: Seconds without an answer; where the rate is not known, the client waits as long again.
    """
    wait_s = (outstanding - limit / 2) / per_second if per_second > 0 else silent_s
    return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, math.ceil(wait_s)))
