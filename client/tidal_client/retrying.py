"""Retries of calls: exponential backoff with jitter, within the call's timeout."""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Final, TypeVar

from tidal_client.codec import InferRequest
from tidal_client.errors import ConnectionFailed, InvalidArgument, RequestError, Unavailable, is_not_loaded

#: Retries of `tidal load --retry`: their pauses, 11 to 21 s in total, exceed the restart time of a model's process.
LOAD_RETRIES: Final = 8
#: Errors after which a retry may succeed.
RETRYABLE: Final = (Unavailable, ConnectionFailed)

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0


def checked_retries(retries: object) -> int:
    """Validate a number of retries.

    Raises:
        InvalidArgument: It is not a whole number of at least 0.
    """
    try:
        count = -1 if isinstance(retries, bool) else operator.index(retries)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if count < 0:
        raise InvalidArgument(f"retries: expected a whole number of at least 0, got {retries!r}")
    return count


def pause_s(attempt: int, jitter: float) -> float:
    """Return the pause after a failed attempt: it doubles from 0.2 s up to 5 s, minus a random part of up to half.

    Args:
        attempt: Number of attempts that failed before this one.
        jitter: Uniform random number in [0, 1), so that the clients of a failed server do not all retry at once.
    """
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 10)) * (1 - jitter / 2))


class Attempts:
    """The attempts of one call; its timeout starts when this object is created.

    Args:
        retries: Maximum number of retries.
        timeout_s: Timeout of all attempts together, in seconds.
        latency_ms: Deadline of the request in milliseconds; retries send what remains of it. None: no deadline.
        clock: Returns the current time in seconds.

    Attributes:
        moves: Number of attempts at other addresses of the client that may begin without a pause. Those after a
            `ConnectionFailed` are no retries: after each address that was not reached, and once after a connection
            that broke, when the server may have begun the request. Nor are those after a server that has not loaded
            the model.
    """

    # Few calls change them, and every call creates an object.
    moves = 0
    _retried = 0
    _broken = False

    def __init__(
        self,
        retries: int,
        timeout_s: float,
        latency_ms: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retries, self._timeout_s, self._latency_ms, self._clock = retries, timeout_s, latency_ms, clock
        self._began = clock()
        self._failed = 0

    @property
    def left_s(self) -> float:
        """Timeout of the next attempt, in seconds."""
        return self._timeout_s if not self._failed else max(0.001, self._timeout_s - self._elapsed_s())

    @property
    def left_ms(self) -> float | None:
        """Rest of the request's deadline for the next attempt, in milliseconds; None: no deadline."""
        if not self._failed or self._latency_ms is None:
            return self._latency_ms
        return max(0.001, self._latency_ms - 1000 * self._elapsed_s())

    def request(self, request: InferRequest) -> InferRequest:
        """Return the request for the next attempt, with the rest of its deadline."""
        left_ms = self.left_ms
        if not self._failed or left_ms is None:
            return request
        return replace(request, parameters={**request.parameters, "latency_ms": left_ms})

    def pause_s(self, error: RequestError) -> float:
        """Return the pause before the next attempt, in seconds.

        Args:
            error: Error of the last attempt.

        Raises:
            RequestError: The given error, if there is no further attempt: it is not `RETRYABLE`, no retries are left,
                or the pause would exceed the timeout or the deadline. A model that is not loaded is not waited for.
        """
        if not isinstance(error, RETRYABLE) and not (self.moves and is_not_loaded(error)):
            raise error
        limit_s = self._timeout_s if self._latency_ms is None else min(self._timeout_s, self._latency_ms / 1000)
        if self.moves and self._elapsed_s() < limit_s and self._may_move(error):
            self.moves -= 1
            self._failed += 1
            return 0.0
        pause = pause_s(self._retried, random.random())
        if self._retried == self._retries or self._elapsed_s() + pause >= limit_s:
            raise error
        self._failed += 1
        self._retried += 1
        return pause

    def _may_move(self, error: RequestError) -> bool:
        """Whether another address may be tried at once; counts a retry if it is one."""
        if is_not_loaded(error):
            return True
        if isinstance(error, ConnectionFailed) and not (error.reached and self._broken):
            self._broken |= error.reached
            return True
        if self._retried < self._retries:
            self._retried += 1
            return True
        return False

    def _elapsed_s(self) -> float:
        return self._clock() - self._began


def attempts(retries: int, timeout_s: float, request: InferRequest) -> Attempts:
    """Return the attempts of one request."""
    latency_ms = request.parameters.get("latency_ms")
    return Attempts(retries, timeout_s, None if latency_ms is None else float(latency_ms))


def with_retries(tries: Attempts, call: Callable[[], T]) -> T:
    """Call a function until it succeeds or no attempts are left, and return its result.

    Args:
        tries: Attempts of the call.
        call: Blocking call to retry.

    Raises:
        RequestError: Error of the last attempt.
    """
    while True:
        try:
            return call()
        except RequestError as error:
            time.sleep(tries.pause_s(error))


async def with_retries_async(tries: Attempts, call: Callable[[], Awaitable[T]]) -> T:
    """Asyncio variant of `with_retries`."""
    while True:
        try:
            return await call()
        except RequestError as error:
            await asyncio.sleep(tries.pause_s(error))


def stream_with_retries(
    tries: Attempts, request: InferRequest, start: Callable[[InferRequest], Generator[T, None, None]]
) -> Generator[T, None, None]:
    """Yield the items of a blocking stream; retry it if it fails before its first item.

    Args:
        tries: Attempts of the request.
        request: Request to send.
        start: Starts the stream of a request.

    Raises:
        RequestError: Error of the last attempt, or of a stream that had begun.
    """
    while True:
        begun = False
        try:
            with closing(start(tries.request(request))) as items:
                for item in items:
                    begun = True
                    yield item
            return
        except RequestError as error:
            if begun:
                raise
            time.sleep(tries.pause_s(error))


async def stream_with_retries_async(
    tries: Attempts, request: InferRequest, start: Callable[[InferRequest], AsyncGenerator[T, None]]
) -> AsyncGenerator[T, None]:
    """Asyncio variant of `stream_with_retries`."""
    while True:
        begun = False
        try:
            async with aclosing(start(tries.request(request))) as items:
                async for item in items:
                    begun = True
                    yield item
            return
        except RequestError as error:
            if begun:
                raise
            await asyncio.sleep(tries.pause_s(error))
