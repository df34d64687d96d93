"""Triton over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tidal_client.codec import InferRequest, infer_arguments, read_metadata, read_outputs
from tidal_client.errors import DeadlineExceeded, InvalidArgument, RequestError, from_grpc
from tidal_client.results import Array, ModelMetadata

_UNLIMITED = 2**31 - 1
# gRPC waits up to two minutes before it tries a server again that was away; restarts take seconds.
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
    except InferenceServerException as error:
        raise _translate(error, location, timeout_s) from None


def _translate(error: Any, location: str, timeout_s: float) -> RequestError:
    message, status = str(error.message()), error.status()
    if status is None:  # tritonclient refused it before sending
        return InvalidArgument(message)
    failure = from_grpc(str(status).removeprefix("StatusCode."), message)
    if isinstance(failure, DeadlineExceeded):
        return DeadlineExceeded(f"no answer from grpc://{location} within {timeout_s:g} s")
    if isinstance(failure, ConnectionError):
        return type(failure)(f"no connection to grpc://{location}: {message}")
    return failure


class GrpcTransport:
    """Blocking calls over one channel, which threads share."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._client = triton.InferenceServerClient(location, channel_args=CHANNEL)

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        with _errors(self._location, timeout_s):
            arguments = infer_arguments(request, triton)
            return read_outputs(self._client.infer(**arguments, client_timeout=timeout_s))

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
    """Calls over one channel of the running event loop; cancelling a task cancels its request on the server."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._client = triton_aio.InferenceServerClient(location, channel_args=CHANNEL)

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        with _errors(self._location, timeout_s):
            arguments = infer_arguments(request, triton)
            return read_outputs(await self._client.infer(**arguments, client_timeout=timeout_s))

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
