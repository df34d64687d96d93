"""Triton over HTTP, with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from yarl import URL

from tidal_client.codec import InferRequest
from tidal_client.errors import RequestError, from_http
from tidal_client.results import Array, ModelMetadata
from tidal_client.transports.http import NO_HTTP, not_connected, timed_out
from tidal_client.transports.http_messages import (
    JSON_LENGTH,
    error_message,
    infer_body,
    model_path,
    read_max_rows,
    read_metadata,
    ready_path,
    response_arrays,
)
from tidal_client.transports.http_stream import read_event, stream_body, stream_error

# Maximum length of an event: an event is one line, and may contain a complete response.
_LONGEST_EVENT = 1 << 24
# Without this header, aiohttp lets Triton compress its responses.
_HEADERS: Final = {"Accept-Encoding": "identity"}
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)  # each call has its own


class AsyncHttpTransport:
    """Asyncio calls over the connections of one session."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._base = f"http://{location}"
        # One connection per call: requests should wait in the server, which checks deadlines.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=_HEADERS, timeout=_NO_TIMEOUT
        )

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        body, json_length = infer_body(request)
        url, fields = self._url(model_path(request.model, "/infer")), {JSON_LENGTH: str(json_length)}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(url, data=body, headers=fields, allow_redirects=False) as response,
            ):
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._translate(error, timeout_s) from None
        if response.status != 200:
            raise from_http(response.status, error_message(content))
        return response_arrays(content, response.headers.get(JSON_LENGTH))

    async def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """See `Transport.stream`; uses the server's `generate_stream`."""
        url, body = self._url(model_path(request.model, "/generate_stream")), stream_body(request)
        # Closing the session closes the connection, which cancels the request.
        async with _stream_session() as session:
            async with self._errors(timeout_s):
                fields = {"Content-Type": "application/json"}
                response = await session.post(url, data=body, headers=fields, allow_redirects=False)
            try:
                if response.status != 200:
                    async with self._errors(timeout_s):
                        raise stream_error(response.status, await response.read())
                events = _events(response)
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
        status, _ = await self._get(ready_path(model), timeout_s)
        return status == 200

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        status, content = await self._get(model_path(model), timeout_s)
        if status != 200:
            raise from_http(status, error_message(content))
        return read_metadata(content)

    async def max_rows(self, model: str, timeout_s: float) -> int:
        """See `Transport.max_rows`."""
        status, content = await self._get(model_path(model, "/config"), timeout_s)
        if status != 200:
            raise from_http(status, error_message(content))
        return read_max_rows(content)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def _url(self, path: str) -> URL:
        return URL(self._base + path, encoded=True)

    async def _get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        async with self._errors(timeout_s), self._session.get(self._url(path), allow_redirects=False) as response:
            return response.status, await response.read()

    @asynccontextmanager
    async def _errors(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except (aiohttp.ClientError, OSError) as error:
            raise self._translate(error, timeout_s) from None

    def _translate(self, error: Exception, timeout_s: float) -> RequestError:
        if isinstance(error, TimeoutError):
            return timed_out(self._location, timeout_s)
        if isinstance(error, aiohttp.ClientResponseError):  # not HTTP; the content may be of any size
            return not_connected(self._location, NO_HTTP)
        reached = not isinstance(error, aiohttp.ClientConnectorError)
        return not_connected(self._location, str(error) or type(error).__name__, reached=reached)


def _stream_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers=_HEADERS, timeout=_NO_TIMEOUT, read_bufsize=_LONGEST_EVENT)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Array]]:
    async for line in response.content:
        if (outputs := read_event(line)) is not None:
            yield outputs
