"""Triton over gRPC."""

from __future__ import annotations

import asyncio
import queue
import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tidal_client.codec import InferRequest, infer_arguments, read_metadata, read_outputs
from tidal_client.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    RequestError,
    from_grpc,
    from_stream,
)
from tidal_client.results import Array, ModelMetadata

_UNLIMITED = 2**31 - 1
# By default gRPC waits up to two minutes before it reconnects; a server restart takes seconds.
CHANNEL = [
    ("grpc.max_send_message_length", _UNLIMITED),
    ("grpc.max_receive_message_length", _UNLIMITED),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
# Message of tritonclient for a request on a failed stream; the callback receives the cause.
_STREAM_FAILED = "The stream is no longer in valid state"


@contextmanager
def _errors(location: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except InferenceServerException as error:
        raise _translate(error, location, timeout_s) from None


def _translate(error: Any, location: str, timeout_s: float) -> RequestError:
    message, status = str(error.message()), error.status()
    if status is None:  # tritonclient refused it before sending
        return InvalidArgument(message)
    return _failure(str(status).removeprefix("StatusCode."), message, location, timeout_s)


def _failure(status: str, message: str, location: str, timeout_s: float) -> RequestError:
    failure = from_grpc(status, message)
    if isinstance(failure, DeadlineExceeded):
        return DeadlineExceeded(f"no answer from grpc://{location} within {timeout_s:g} s")
    if isinstance(failure, ConnectionFailed):
        return ConnectionFailed(f"no connection to grpc://{location}: {message}{_other_protocol(message)}")
    return failure


def _other_protocol(message: str) -> str:
    """Return a hint for addresses that close gRPC connections, as HTTP servers do; else an empty string."""
    if re.search("failed to connect to all addresses.*(Socket closed|http1)", message) is None:
        return ""
    return "; it does not speak plain gRPC: if it is the server's HTTP port, use http://HOST:PORT"


def _is_last(result: Any) -> bool:
    """Whether a response is the last one of its stream."""
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def _send(client: Any, arguments: dict[str, Any]) -> None:
    """Send a request on a client's stream; if the stream has failed, its callback receives the cause."""
    try:
        client.async_stream_infer(**arguments)
    except InferenceServerException as error:
        if not str(error.message()).startswith(_STREAM_FAILED):
            raise


class GrpcTransport:
    """Blocking calls over one channel that threads share."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._client = triton.InferenceServerClient(location, channel_args=CHANNEL)

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        with _errors(self._location, timeout_s):
            arguments = infer_arguments(request, triton)
            return read_outputs(self._client.infer(**arguments, client_timeout=timeout_s))

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """See `Transport.stream`."""
        with _errors(self._location, timeout_s):
            arguments = infer_arguments(request, triton)
            # A client has one stream at a time; clients of one address share its connection.
            client = triton.InferenceServerClient(self._location, channel_args=CHANNEL)
        responses: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        ended = False
        try:
            with _errors(self._location, timeout_s):
                client.start_stream(lambda result, error: responses.put((result, error)))
                _send(client, arguments)
            while not ended:
                try:
                    result, error = responses.get(timeout=timeout_s)
                except queue.Empty:
                    raise _failure("DEADLINE_EXCEEDED", "", self._location, timeout_s) from None
                if error is not None:
                    if error.status() is None:
                        ended = True  # a rejected request has no further response
                        raise from_stream(str(error.message()))
                    raise _translate(error, self._location, timeout_s)
                ended = _is_last(result)
                yield read_outputs(result)
        finally:
            client.stop_stream(cancel_requests=not ended)
            client.close()

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        with _errors(self._location, timeout_s):
            if model is None:
                return bool(self._client.is_server_ready(client_timeout=timeout_s))
            return bool(self._client.is_model_ready(model, client_timeout=timeout_s))

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        with _errors(self._location, timeout_s):
            found = self._client.get_model_metadata(model, as_json=True, client_timeout=timeout_s)
        return read_metadata(found)

    def close(self) -> None:
        """Close the channel; requests in flight are cancelled."""
        self._client.close()


class AsyncGrpcTransport:
    """Asyncio calls over one channel; cancelling a task cancels its request on the server."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._client = triton_aio.InferenceServerClient(location, channel_args=CHANNEL)

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        with _errors(self._location, timeout_s):
            arguments = infer_arguments(request, triton)
            return read_outputs(await self._client.infer(**arguments, client_timeout=timeout_s))

    async def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """See `Transport.stream`."""
        with _errors(self._location, timeout_s):
            arguments = infer_arguments(request, triton)

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield arguments

        responses = self._client.stream_infer(requests())
        ended = False
        try:
            while not ended:
                try:
                    async with asyncio.timeout(timeout_s):
                        result, error = await anext(responses)
                except TimeoutError:
                    raise _failure("DEADLINE_EXCEEDED", "", self._location, timeout_s) from None
                except grpc.RpcError as failed:
                    raise _failure(failed.code().name, str(failed.details()), self._location, timeout_s) from None
                if error is not None:
                    ended = True  # a rejected request has no further response
                    raise from_stream(str(error.message()))
                ended = _is_last(result)
                yield read_outputs(result)
        finally:
            if ended:
                # Cancelling a stream after its last response delays the server's shutdown.
                with suppress(StopAsyncIteration, TimeoutError, grpc.RpcError):
                    async with asyncio.timeout(timeout_s):
                        await anext(responses)
            responses.cancel()

    async def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        with _errors(self._location, timeout_s):
            if model is None:
                return bool(await self._client.is_server_ready(client_timeout=timeout_s))
            return bool(await self._client.is_model_ready(model, client_timeout=timeout_s))

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        with _errors(self._location, timeout_s):
            found = await self._client.get_model_metadata(model, as_json=True, client_timeout=timeout_s)
        return read_metadata(found)

    async def close(self) -> None:
        """Close the channel; requests in flight are cancelled."""
        await self._client.close()
