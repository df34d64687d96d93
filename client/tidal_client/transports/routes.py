"""The addresses of the attempts of calls to several servers, the same for blocking and asyncio calls."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from tidal_client.balance import Balance, Sent
from tidal_client.codec import InferRequest
from tidal_client.errors import RequestError
from tidal_client.retrying import Attempts, attempts

#: Message of calls that the end of their client stops between two attempts.
CLOSED: Final = "the client was closed before the response arrived"


class Routes:
    """The balance of the calls of one client, safe between threads.

    Args:
        addresses: Number of addresses.
        retries: Maximum number of retries of a call.
        restored: Called when an address that was left out answers again: its models may have changed.
    """

    def __init__(self, addresses: int, retries: int, restored: Callable[[], None]) -> None:
        self._addresses, self._retries, self._restored = addresses, retries, restored
        self._balance = Balance(addresses, time.monotonic, random.random)
        self._lock = threading.Lock()

    def request(self, request: InferRequest, timeout_s: float) -> Route:
        """Return the route of a request."""
        return self._route(request.model, attempts(self._retries, timeout_s, request))

    def call(self, model: str, timeout_s: float) -> Route:
        """Return the route of a call without a request."""
        return self._route(model, Attempts(self._retries, timeout_s))

    def survey(self, model: str | None, *, skip_out: bool) -> list[int]:
        """Return the addresses to ask one after another.

        Args:
            model: Model to ask for; None: the server as a whole.
            skip_out: Whether to omit addresses that are left out, while there are others; else they come last.
        """
        with self._lock:
            out = [self._balance.is_out(address, model) for address in range(self._addresses)]
        usable = [address for address, is_out in enumerate(out) if not is_out]
        rest = [address for address, is_out in enumerate(out) if is_out]
        return usable if skip_out and usable else usable + rest

    def choose(self, model: str | None, tried: set[int]) -> Sent:
        """Choose the address of an attempt; see `Balance.choose`."""
        with self._lock:
            return self._balance.choose(model, tried)

    def send(self, address: int, model: str | None) -> Sent:
        """Count an attempt at a given address."""
        with self._lock:
            return self._balance.send(address, model)

    def answered(self, sent: Sent) -> None:
        """Note an answer, or the first part of a stream."""
        with self._lock:
            restored = self._balance.answered(sent)
        if restored:
            self._restored()

    def failed(self, sent: Sent, error: RequestError) -> None:
        """Note the error of an attempt."""
        with self._lock:
            restored = self._balance.failed(sent, error)
        if restored:
            self._restored()

    def ended(self, sent: Sent) -> None:
        """Count an attempt as no longer outstanding."""
        with self._lock:
            self._balance.ended(sent)

    def _route(self, model: str, tries: Attempts) -> Route:
        tries.moves = self._addresses - 1
        return Route(self, model, tries)


class Route:
    """The attempts of one call, and the addresses that it has tried.

    Args:
        routes: Routes of its client.
        model: Model that it calls.
        tries: Attempts of the call.
    """

    def __init__(self, routes: Routes, model: str, tries: Attempts) -> None:
        self._routes, self._model, self.tries = routes, model, tries
        self._tried = set[int]()

    def begin(self) -> Sent:
        """Choose the address of the next attempt."""
        sent = self._routes.choose(self._model, self._tried)
        self._tried.add(sent.address)
        return sent

    def pause_s(self, sent: Sent, error: RequestError) -> float:
        """Note an error and return the pause before the next attempt, in seconds; see `Attempts.pause_s`."""
        self._routes.failed(sent, error)
        pause_s = self.tries.pause_s(error)
        if pause_s:
            self._tried = {sent.address}
        return pause_s


def part_timeout_s(request: InferRequest, timeout_s: float, tries: Attempts) -> float:
    """Return the timeout of an attempt: a stream has the whole one for each part, a single answer what is left."""
    stream = request.inputs.get("stream")
    return timeout_s if stream is not None and bool(stream.any()) else tries.left_s


def any_ready(answers: Sequence[bool | RequestError]) -> bool:
    """Whether one of several servers is ready.

    Raises:
        RequestError: None has answered.
    """
    if all(isinstance(each, RequestError) for each in answers):
        _raise_last(answers)
    return any(each is True for each in answers)


def fewest_rows(answers: Sequence[int | RequestError]) -> int:
    """Return the maximum number of rows that each server which has answered accepts.

    Raises:
        RequestError: None has answered.
    """
    rows = [each for each in answers if isinstance(each, int)]
    return min(rows) if rows else _raise_last(answers)


def _raise_last(answers: Sequence[object]) -> NoReturn:
    last = answers[-1]
    assert isinstance(last, RequestError)
    raise last
