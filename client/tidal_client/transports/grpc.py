"""Triton over gRPC."""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tidal_client.codec import InferRequest
from tidal_client.errors import ConnectionFailed, DeadlineExceeded, RequestError, from_grpc, from_stream
from tidal_client.results import Array, ModelMetadata
from tidal_client.transports.grpc_messages import infer_message, is_last, response_arrays, response_metadata

_UNLIMITED = 2**31 - 1
_NOT_REACHED = re.compile("failed to connect to|errors resolving|DNS resolution failed|No route to host")
# By default gRPC waits up to two minutes before it reconnects; a server restart takes seconds.
CHANNEL = [
    ("grpc.max_send_message_length", _UNLIMITED),
    ("grpc.max_receive_message_length", _UNLIMITED),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


@contextmanager
def _errors(location: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise _translate(error, location, timeout_s) from None


def _translate(error: Any, location: str, timeout_s: float) -> RequestError:
    return failure(error.code().name, str(error.details()), location, timeout_s)


def failure(status: str, message: str, location: str, timeout_s: float) -> RequestError:
    """Return the error for a failed call.

    Args:
        status: Name of its gRPC status code.
        message: Message of its status.
        location: ``host:port`` of the server.
        timeout_s: Timeout of the call, in seconds.
    """
    error = from_grpc(status, message)
    if isinstance(error, DeadlineExceeded):
        return DeadlineExceeded(f"no answer from grpc://{location} within {timeout_s:g} s")
    if isinstance(error, ConnectionFailed):
        failed = ConnectionFailed(f"no connection to grpc://{location}: {message}{_other_protocol(message)}")
        failed.reached = _NOT_REACHED.match(message) is None
        return failed
    return error


def _other_protocol(message: str) -> str:
    """Return a hint for addresses that close gRPC connections, as HTTP servers do; else an empty string."""
    if re.search("failed to connect to all addresses.*(Socket closed|http1)", message) is None:
        return ""
    return "; it does not speak plain gRPC: if it is the server's HTTP port, use http://HOST:PORT"


class _Reading:
    """The state of a stream's responses, the same for blocking and asyncio calls."""

    def __init__(self) -> None:
        self.ended = False

    def read(self, response: Any) -> dict[str, Array]:
        """Return the arrays of a `ModelStreamInferResponse`.

        Raises:
            RequestError: The server rejected the request.
        """
        if response.error_message:
            self.ended = True  # a rejected request has no further response
            raise from_stream(response.error_message)
        self.ended = is_last(response.infer_response)
        return response_arrays(response.infer_response)


def _broken(location: str, timeout_s: float) -> RequestError:
    return failure("UNAVAILABLE", "Stream removed before its last response", location, timeout_s)


class GrpcTransport:
    """Blocking calls over one channel that threads share."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._channel = grpc.insecure_channel(location, options=CHANNEL)
        self._stub = GRPCInferenceServiceStub(self._channel)

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        message = infer_message(request)
        try:
            response = self._stub.ModelInfer(message, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translate(error, self._location, timeout_s) from None
        return response_arrays(response)

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """See `Transport.stream`."""
        call = self._stub.ModelStreamInfer(iter([infer_message(request)]))
        # gRPC's iterator has no timeout per response, so another thread waits in it.
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(target=_receive, args=(call, responses), name="tidal-client-stream", daemon=True)
        thread.start()
        reading = _Reading()
        try:
            while not reading.ended:
                try:
                    response = responses.get(timeout=timeout_s)
                except queue.Empty:
                    raise failure("DEADLINE_EXCEEDED", "", self._location, timeout_s) from None
                if response is None:
                    raise _broken(self._location, timeout_s)
                if isinstance(response, grpc.RpcError):
                    raise _translate(response, self._location, timeout_s)
                yield reading.read(response)
        finally:
            if reading.ended:
                # Cancelling a stream after its last response delays the server's shutdown.
                thread.join(timeout_s)
            call.cancel()

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        with _errors(self._location, timeout_s):
            if model is None:
                return bool(self._stub.ServerReady(messages.ServerReadyRequest(), timeout=timeout_s).ready)
            return bool(self._stub.ModelReady(messages.ModelReadyRequest(name=model), timeout=timeout_s).ready)

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        with _errors(self._location, timeout_s):
            found = self._stub.ModelMetadata(messages.ModelMetadataRequest(name=model), timeout=timeout_s)
        return response_metadata(found)

    def max_rows(self, model: str, timeout_s: float) -> int:
        """See `Transport.max_rows`."""
        with _errors(self._location, timeout_s):
            found = self._stub.ModelConfig(messages.ModelConfigRequest(name=model), timeout=timeout_s)
        return max(1, int(found.config.max_batch_size))

    def close(self) -> None:
        """Close the channel; requests in flight are cancelled."""
        self._channel.close()


def _receive(call: Any, responses: queue.SimpleQueue[Any]) -> None:
    """Put a stream's responses into a queue, and then its error, or None if it ended without one."""
    try:
        for response in call:
            responses.put(response)
    except grpc.RpcError as error:
        responses.put(error)
    else:
        responses.put(None)


class AsyncGrpcTransport:
    """Asyncio calls over one channel; cancelling a task cancels its request on the server."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._channel = grpc.aio.insecure_channel(location, options=CHANNEL)
        self._stub = GRPCInferenceServiceStub(self._channel)

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        message = infer_message(request)
        try:
            response = await self._stub.ModelInfer(message, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translate(error, self._location, timeout_s) from None
        return response_arrays(response)

    async def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """See `Transport.stream`."""
        message = infer_message(request)

        async def requests() -> AsyncIterator[Any]:
            yield message

        call = self._stub.ModelStreamInfer(requests())
        reading = _Reading()
        try:
            while not reading.ended:
                try:
                    async with asyncio.timeout(timeout_s):
                        response = await call.read()
                except TimeoutError:
                    raise failure("DEADLINE_EXCEEDED", "", self._location, timeout_s) from None
                except grpc.RpcError as error:
                    raise _translate(error, self._location, timeout_s) from None
                if response is grpc.aio.EOF:
                    raise _broken(self._location, timeout_s)
                yield reading.read(response)
        finally:
            if reading.ended:
                # Cancelling a stream after its last response delays the server's shutdown.
                with suppress(TimeoutError, grpc.RpcError):
                    async with asyncio.timeout(timeout_s):
                        await call.read()
            call.cancel()

    async def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        with _errors(self._location, timeout_s):
            if model is None:
                return bool((await self._stub.ServerReady(messages.ServerReadyRequest(), timeout=timeout_s)).ready)
            return bool((await self._stub.ModelReady(messages.ModelReadyRequest(name=model), timeout=timeout_s)).ready)

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        with _errors(self._location, timeout_s):
            found = await self._stub.ModelMetadata(messages.ModelMetadataRequest(name=model), timeout=timeout_s)
        return response_metadata(found)

    async def max_rows(self, model: str, timeout_s: float) -> int:
        """See `Transport.max_rows`."""
        with _errors(self._location, timeout_s):
            found = await self._stub.ModelConfig(messages.ModelConfigRequest(name=model), timeout=timeout_s)
        return max(1, int(found.config.max_batch_size))

    async def close(self) -> None:
        """Close the channel; requests in flight are cancelled."""
        await self._channel.close()
