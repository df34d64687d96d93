"""Triton over HTTP. A request that the client gives up is not withdrawn on the server: Triton's HTTP has no way to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPException
from typing import Any

import aiohttp
import gevent  # type: ignore[import-untyped]
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tidal_client.codec import InferRequest, infer_arguments, read_metadata, read_outputs
from tidal_client.errors import ConnectionFailed, DeadlineExceeded, InvalidArgument, RequestError, from_http
from tidal_client.results import Array, ModelMetadata


def _translate(error: BaseException, location: str, timeout_s: float) -> RequestError:
    if isinstance(error, InferenceServerException):
        message, status = str(error.message()), error.status()
        # Without a status it was tritonclient that refused it, before sending.
        return InvalidArgument(message) if status is None else from_http(int(status), message)
    if isinstance(error, gevent.Timeout | TimeoutError):
        return DeadlineExceeded(f"no answer from http://{location} within {timeout_s:g} s")
    return ConnectionFailed(f"no connection to http://{location}: {error or type(error).__name__}")


class HttpTransport:
    """Blocking calls with one connection a thread, because tritonclient's HTTP client must stay in its thread."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._local = threading.local()

    @contextmanager
    def _connection(self, timeout_s: float) -> Iterator[Any]:
        client = getattr(self._local, "client", None)
        if client is None:
            # The timeout below bounds a whole call; those of the sockets would bound single reads.
            client = triton.InferenceServerClient(self._location, connection_timeout=None, network_timeout=None)
            self._local.client = client
        timeout = gevent.Timeout(timeout_s)
        try:
            with timeout:
                yield client
        except InferenceServerException as error:
            raise _translate(error, self._location, timeout_s) from None
        except BaseException as error:
            # An answer may still be on its way, and must not meet the next request.
            self.close()
            if error is timeout or isinstance(error, OSError | HTTPException):
                raise _translate(error, self._location, timeout_s) from None
            raise

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        with self._connection(timeout_s) as client:
            return read_outputs(client.infer(**infer_arguments(request, triton)))

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        with self._connection(timeout_s) as client:
            return bool(client.is_server_ready() if model is None else client.is_model_ready(model))

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        with self._connection(timeout_s) as client:
            found = client.get_model_metadata(model)
        return read_metadata(found)

    def close(self) -> None:
        """Close this thread's connection; another thread's closes when the thread ends."""
        client = self._local.__dict__.pop("client", None)
        if client is not None:
            client.close()


class AsyncHttpTransport:
    """Calls over the connections of one session of the running event loop."""

    def __init__(self, location: str) -> None:
        self._location = location
        # As many connections as calls: what waits should wait in the server, which knows deadlines.
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
