"""One server over gRPC: raw messages in, raw messages out, cancelled with the task that calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tidal_client.errors import RequestError, from_stream
from tidal_client.transports.grpc import CHANNEL, failure
from tidal_client.transports.grpc_messages import is_last

#: gRPC metadata: names and values.
Metadata = tuple[tuple[str, str], ...]
# The pool retries; gRPC's own retries take a twentieth of the processor time of a call, unused.
_OPTIONS: Final = [*CHANNEL, ("grpc.enable_retries", 0)]


class Channel:
    """A gRPC channel to one server; every method raises `RequestError` and ends within `timeout_s` seconds.

    Args:
        address: ``host:port`` of the server's gRPC endpoint.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub = GRPCInferenceServiceStub(self._channel)

    async def infer(self, message: Any, timeout_s: float, metadata: Metadata | None = None) -> Any:
        """Send a `ModelInferRequest` and return its `ModelInferResponse`."""
        return await self._call(self._stub.ModelInfer, message, timeout_s, metadata)

    async def stream(
        self, message: Any, timeout_s: float, metadata: Metadata | None = None
    ) -> AsyncGenerator[Any, None]:
        """Send a `ModelInferRequest` and yield each `ModelInferResponse`, at most `timeout_s` seconds apart."""

        async def requests() -> AsyncIterator[Any]:
            yield message

        call = self._stub.ModelStreamInfer(requests(), metadata=metadata)
        ended = False
        try:
            while not ended:
                try:
                    async with asyncio.timeout(timeout_s):
                        response = await call.read()
                except TimeoutError:
                    raise failure("DEADLINE_EXCEEDED", "", self.address, timeout_s) from None
                except grpc.RpcError as error:
                    raise self._translate(error, timeout_s) from None
                if response is grpc.aio.EOF:
                    raise failure("UNAVAILABLE", "Stream removed before its last response", self.address, timeout_s)
                if response.error_message:
                    ended = True
                    raise from_stream(response.error_message)
                ended = is_last(response.infer_response)
                yield response.infer_response
        finally:
            if ended:
                # Cancelling a stream after its last response delays the server's shutdown.
                with suppress(TimeoutError, grpc.RpcError):
                    async with asyncio.timeout(timeout_s):
                        await call.read()
            call.cancel()

    async def ready(self, timeout_s: float) -> bool:
        """Whether the server answers and accepts requests."""
        return bool((await self._call(self._stub.ServerLive, messages.ServerLiveRequest(), timeout_s)).live)

    async def model_ready(self, model: str, version: str, timeout_s: float) -> bool:
        """Whether a version of a model, or with an empty version any, is ready."""
        message = messages.ModelReadyRequest(name=model, version=version)
        return bool((await self._call(self._stub.ModelReady, message, timeout_s)).ready)

    async def statistics(self, timeout_s: float, model: str = "", version: str = "") -> Any:
        """The `ModelStatisticsResponse` of a model, or with an empty name of all that are ready."""
        message = messages.ModelStatisticsRequest(name=model, version=version)
        return await self._call(self._stub.ModelStatistics, message, timeout_s)

    async def metadata(self, model: str, version: str, timeout_s: float) -> Any:
        """The `ModelMetadataResponse` of a model."""
        message = messages.ModelMetadataRequest(name=model, version=version)
        return await self._call(self._stub.ModelMetadata, message, timeout_s)

    async def config(self, model: str, version: str, timeout_s: float) -> Any:
        """The `ModelConfig` message of a model."""
        message = messages.ModelConfigRequest(name=model, version=version)
        return (await self._call(self._stub.ModelConfig, message, timeout_s)).config

    async def server_metadata(self, timeout_s: float) -> Any:
        """The `ServerMetadataResponse`."""
        return await self._call(self._stub.ServerMetadata, messages.ServerMetadataRequest(), timeout_s)

    async def close(self) -> None:
        """Close the channel; requests in flight are cancelled."""
        await self._channel.close()

    async def _call(self, method: Any, message: Any, timeout_s: float, metadata: Metadata | None = None) -> Any:
        try:
            return await method(message, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._translate(error, timeout_s) from None

    def _translate(self, error: Any, timeout_s: float) -> RequestError:
        return failure(error.code().name, str(error.details()), self.address, timeout_s)
