"""A refused stream ends without cancellation: cancelled after its last response it delays the server's shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2 as messages

from tidal_client.errors import ConnectionFailed, InvalidArgument
from tidal_client.generation import generation_request
from tidal_client.transports.grpc import AsyncGrpcTransport, GrpcTransport

_REQUEST = generation_request("m", "too long", stream=True, options={})
_REFUSAL = messages.ModelStreamInferResponse(error_message="[INVALID_ARG] too long")


class Call:
    """A stream of given responses; records its uses in order."""

    def __init__(self, *responses: Any) -> None:
        self._responses = list(responses)
        self.seen: list[str] = []

    def __iter__(self) -> Iterator[Any]:
        for response in self._responses:
            self.seen.append("refused")
            yield response
        time.sleep(0.1)
        self.seen.append("ended")

    async def read(self) -> Any:
        self.seen.append("refused" if self._responses else "ended")
        return self._responses.pop(0) if self._responses else grpc.aio.EOF

    def cancel(self) -> None:
        self.seen.append("cancelled")


def ask(call: Call, *, awaited: bool) -> None:
    """Read the whole stream of a transport whose stub starts the given call."""
    stub = SimpleNamespace(ModelStreamInfer=lambda _requests: call)

    async def ask_async() -> None:
        transport = AsyncGrpcTransport("127.0.0.1:1")
        transport._stub = stub
        async for _ in transport.stream(_REQUEST, 5.0):
            pass

    if awaited:
        asyncio.run(ask_async())
    else:
        transport = GrpcTransport("127.0.0.1:1")
        transport._stub = stub
        list(transport.stream(_REQUEST, 5.0))


@pytest.mark.parametrize("awaited", [False, True])
def test_a_refused_stream_is_read_to_its_end(awaited: bool) -> None:
    call = Call(_REFUSAL)
    with pytest.raises(InvalidArgument, match="too long"):
        ask(call, awaited=awaited)
    # gRPC ignores the cancellation of an ended call.
    assert call.seen == ["refused", "ended", "cancelled"]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_stream_without_a_last_response_is_a_broken_connection(awaited: bool) -> None:
    with pytest.raises(ConnectionFailed, match="before its last response"):
        ask(Call(), awaited=awaited)
