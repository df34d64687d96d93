"""Triton over HTTP. Cancelling a request on the server works for streams only, a limit of Triton's HTTP endpoint."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tidal_client.codec import InferRequest, infer_arguments, read_metadata, read_outputs
from tidal_client.errors import Cancelled, ConnectionFailed, DeadlineExceeded, InvalidArgument, RequestError, from_http
from tidal_client.results import Array, ModelMetadata
from tidal_client.transports.http_stream import open_stream, read_events, stream_body

T = TypeVar("T")

#: Hint for addresses that speak another protocol.
NO_HTTP: Final = "it does not speak plain HTTP: if it is the server's gRPC port, use grpc://HOST:PORT"


def _translate(error: Exception, location: str, timeout_s: float) -> RequestError:
    if isinstance(error, InferenceServerException):
        message, status = str(error.message()), error.status()
        # Without a status, tritonclient refused the request before sending it.
        return InvalidArgument(message) if status is None else from_http(int(status), message)
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(f"no answer from http://{location} within {timeout_s:g} s")
    if isinstance(error, aiohttp.ClientResponseError):  # not HTTP; the content may be of any size
        return ConnectionFailed(f"no connection to http://{location}: {NO_HTTP}")
    return ConnectionFailed(f"no connection to http://{location}: {error or type(error).__name__}")


class AsyncHttpTransport:
    """Asyncio calls over the connections of one session."""

    def __init__(self, location: str) -> None:
        self._location = location
        # One connection per call: requests should wait in the server, which checks deadlines.
        self._client = triton_aio.InferenceServerClient(location, conn_limit=0, conn_timeout=None)

    @asynccontextmanager
    async def _errors(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except (InferenceServerException, aiohttp.ClientError, OSError) as error:
            raise _translate(error, self._location, timeout_s) from None

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        async with self._errors(timeout_s):
            return read_outputs(await self._client.infer(**infer_arguments(request, triton)))

    async def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """See `Transport.stream`; uses the server's `generate_stream`."""
        body = stream_body(request)
        async with open_stream() as session:
            async with self._errors(timeout_s):
                url = f"http://{self._location}/v2/models/{quote(request.model, safe='')}/generate_stream"
                response = await session.post(url, json=body)
            events = read_events(response)
            try:
                while True:
                    async with self._errors(timeout_s):
                        outputs = await anext(events, None)
                    if outputs is None:
                        return
                    yield outputs
            finally:
                response.close()

    async def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        async with self._errors(timeout_s):
            if model is None:
                return bool(await self._client.is_server_ready())
            return bool(await self._client.is_model_ready(model))

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        async with self._errors(timeout_s):
            found = await self._client.get_model_metadata(model)
        return read_metadata(found)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class HttpTransport:
    """Blocking calls from any thread, executed in an event loop on a thread of the transport.

    tritonclient's blocking HTTP client works only in the thread that created it, and one client per thread leaks file
    descriptors when threads end. The event loop adds about 0.1 ms per call.
    """

    def __init__(self, location: str) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="tidal-client-http", daemon=True)
        thread.start()
        self._calls = self._run(_open(location))
        self.close = weakref.finalize(self, _end, self._loop, thread, self._calls)

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        return self._run(self._calls.infer(request, timeout_s))

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """See `Transport.stream`."""
        responses = self._calls.stream(request, timeout_s)
        try:
            while (outputs := self._run(_next(responses))) is not None:
                yield outputs
        finally:
            if self.close.alive:
                self._run(_close(responses))

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        return self._run(self._calls.ready(model, timeout_s))

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        return self._run(self._calls.metadata(model, timeout_s))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Cancelled("the client was closed before the response arrived") from None
        except KeyboardInterrupt:
            future.cancel()
            raise


async def _next(responses: AsyncGenerator[dict[str, Array], None]) -> dict[str, Array] | None:
    return await anext(responses, None)


async def _close(responses: AsyncGenerator[dict[str, Array], None]) -> None:
    await responses.aclose()


async def _open(location: str) -> AsyncHttpTransport:
    return AsyncHttpTransport(location)


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, calls: AsyncHttpTransport) -> None:
    async def finish() -> None:
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await calls.close()

    asyncio.run_coroutine_threadsafe(finish(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
