"""Runs of calls with rows: several requests in flight, results in the order of the rows."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, TypeVar, cast

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array
from tidal_client.rows import RowCall, Rows, place

#: Default number of requests of one call that are in flight.
CONCURRENCY: Final = 4

Row = TypeVar("Row")
Send = Callable[[InferRequest], dict[str, Array]]
SendAsync = Callable[[InferRequest], Awaitable[dict[str, Array]]]


def checked_concurrency(concurrency: object) -> int:
    """Validate a number of requests in flight.

    Raises:
        InvalidArgument: It is not a whole number of at least 1.
    """
    try:
        count = 0 if isinstance(concurrency, bool) else operator.index(concurrency)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1:
        raise InvalidArgument(f"concurrency: expected a whole number of at least 1, got {concurrency!r}")
    return count


def run_rows(call: RowCall[Row], max_rows: Callable[[], int], send: Send, concurrency: int) -> list[Row]:
    """Send a call's requests from threads and return the result of each row.

    Args:
        call: Call to run.
        max_rows: Returns the maximum number of rows of a request; not called for a single row.
        send: Sends one request.
        concurrency: Maximum number of requests in flight.

    Raises:
        RequestError: Error of a request; requests that have not been sent by then are not sent.
    """
    if len(call) == 1:
        return _whole(call, _sent(call, None, send))
    parts = call.parts(max_rows()) if len(call) else []
    if len(parts) == 1:
        return _whole(call, _sent(call, None, send))
    results: list[Row | None] = [None] * len(call)

    def run(rows: Rows) -> None:
        place(results, rows, call.read(_sent(call, rows, send), len(rows)))

    with ThreadPoolExecutor(max(1, min(concurrency, len(parts))), "tidal-client-rows") as pool:
        try:
            futures = [pool.submit(run, rows) for rows in parts]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return cast("list[Row]", results)


async def run_rows_async(
    call: RowCall[Row], max_rows: Callable[[], Awaitable[int]], send: SendAsync, concurrency: int
) -> list[Row]:
    """Asyncio variant of `run_rows`; an error or a cancellation cancels the requests in flight."""
    if len(call) == 1:
        return _whole(call, await _sent_async(call, None, send))
    parts = call.parts(await max_rows()) if len(call) else []
    if len(parts) == 1:
        return _whole(call, await _sent_async(call, None, send))
    results: list[Row | None] = [None] * len(call)
    waiting = iter(parts)

    async def run() -> None:
        for rows in waiting:
            place(results, rows, call.read(await _sent_async(call, rows, send), len(rows)))

    workers = [asyncio.ensure_future(run()) for _ in range(min(concurrency, len(parts)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return cast("list[Row]", results)


def _whole(call: RowCall[Row], outputs: Mapping[str, Array]) -> list[Row]:
    return list(call.read(outputs, len(call)))


def _sent(call: RowCall[Row], rows: Rows | None, send: Send) -> dict[str, Array]:
    try:
        return send(call.request(rows))
    except InvalidArgument as error:
        raise call.error(error, rows) from None


async def _sent_async(call: RowCall[Row], rows: Rows | None, send: SendAsync) -> dict[str, Array]:
    try:
        return await send(call.request(rows))
    except InvalidArgument as error:
        raise call.error(error, rows) from None
