"""When a call is tried again, and with what: exponential backoff with jitter, within the call's own time."""

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
from tidal_client.errors import ConnectionFailed, InvalidArgument, RequestError, Unavailable

#: Retries of `tidal load --retry`: their pauses, 11 to 21 s together, outlast the restart of a model's process.
LOAD_RETRIES: Final = 8
#: Errors after which the same request may succeed.
RETRYABLE: Final = (Unavailable, ConnectionFailed)

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0


def checked_retries(retries: object) -> int:
    """The number of retries that a caller gave.

    Raises:
        InvalidArgument: it is not a whole number of at least 0.
    """
    try:
        count = -1 if isinstance(retries, bool) else operator.index(retries)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if count < 0:
        raise InvalidArgument(f"retries: expected a whole number of at least 0, got {retries!r}")
    return count


def pause_s(attempt: int, jitter: float) -> float:
    """Seconds to wait after a failed attempt: they double from 0.2 s up to 5 s, less up to a half of them at random.

    Args:
        attempt: number of attempts that failed before this one.
        jitter: uniform random number in [0, 1), so that clients of one failed server do not return together.
    """
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 10)) * (1 - jitter / 2))


class Attempts:
    """The attempts at one call; its time runs from here.

    Args:
        retries: how often the call may be tried again.
        timeout_s: seconds that all attempts may take together.
        latency_ms: the request's deadline on the server in milliseconds, which later attempts get the rest of.
        clock: current time in seconds.
    """

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
        """Seconds that the next attempt may wait for its answer."""
        return self._timeout_s if not self._failed else max(0.001, self._timeout_s - self._elapsed_s())

    @property
    def left_ms(self) -> float | None:
        """Milliseconds left of the request's deadline for the next attempt; None where it has none."""
        if not self._failed or self._latency_ms is None:
            return self._latency_ms
        return max(0.001, self._latency_ms - 1000 * self._elapsed_s())

    def request(self, request: InferRequest) -> InferRequest:
        """The request as the next attempt sends it: with what is left of its deadline."""
        left_ms = self.left_ms
        if not self._failed or left_ms is None:
            return request
        return replace(request, parameters={**request.parameters, "latency_ms": left_ms})

    def pause_s(self, error: RequestError) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            RequestError: the one given, where no further attempt is made: it is not of `RETRYABLE`, all retries are
                used up, or the pause would not end in time.
        """
        if not isinstance(error, RETRYABLE) or self._failed == self._retries:
            raise error
        limit_s = self._timeout_s if self._latency_ms is None else min(self._timeout_s, self._latency_ms / 1000)
        pause = pause_s(self._failed, random.random())
        if self._elapsed_s() + pause >= limit_s:
            raise error
        self._failed += 1
        return pause

    def _elapsed_s(self) -> float:
        return self._clock() - self._began


def attempts(retries: int, timeout_s: float, request: InferRequest) -> Attempts:
    """The attempts at one request."""
    latency_ms = request.parameters.get("latency_ms")
    return Attempts(retries, timeout_s, None if latency_ms is None else float(latency_ms))


def with_retries(tries: Attempts, call: Callable[[], T]) -> T:
    """What a blocking call returns, tried as often as `tries` allows.

    Raises:
        RequestError: that of the last attempt.
    """
    while True:
        try:
            return call()
        except RequestError as error:
            time.sleep(tries.pause_s(error))


async def with_retries_async(tries: Attempts, call: Callable[[], Awaitable[T]]) -> T:
    """See `with_retries`; for asyncio."""
    while True:
        try:
            return await call()
        except RequestError as error:
            await asyncio.sleep(tries.pause_s(error))


def stream_with_retries(
    tries: Attempts, request: InferRequest, start: Callable[[InferRequest], Generator[T, None, None]]
) -> Generator[T, None, None]:
    """What a blocking stream yields; one that fails before its first item is started again.

    Raises:
        RequestError: that of the last attempt.
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
    """See `stream_with_retries`; for asyncio."""
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
