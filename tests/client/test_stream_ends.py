"""A refused stream ends without cancellation: cancelled after its last response it delays the server's shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidal_client.errors import InvalidArgument
from tidal_client.generation import generation_request
from tidal_client.transports import grpc

_REQUEST = generation_request("m", "too long", stream=True, request_id="", options={})


class Refused:
    """An error in a stream, like tritonclient's."""

    def message(self) -> str:
        return "[INVALID_ARG] too long"

    def status(self) -> None:
        return None


class Responses:
    """A stream that refuses its request and ends; records its uses in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __aiter__(self) -> Responses:
        return self

    async def __anext__(self) -> tuple[None, Refused]:
        self.seen.append("ended" if self.seen else "refused")
        if self.seen[-1] == "ended":
            raise StopAsyncIteration
        return None, Refused()

    def cancel(self) -> None:
        self.seen.append("cancelled")


def test_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = Responses()

    async def ask() -> None:
        transport = grpc.AsyncGrpcTransport("127.0.0.1:1")
        monkeypatch.setattr(transport._client, "stream_infer", lambda _requests: responses)
        async for _ in transport.stream(_REQUEST, 5.0):
            pass

    with pytest.raises(InvalidArgument, match="too long"):
        asyncio.run(ask())
    assert responses.seen == ["refused", "ended", "cancelled"]


def test_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[bool] = []

    class Client:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def start_stream(self, callback: Callable[[None, Refused], None]) -> None:
            self._callback = callback

        def async_stream_infer(self, **_: Any) -> None:
            self._callback(None, Refused())

        def stop_stream(self, *, cancel_requests: bool) -> None:
            cancelled.append(cancel_requests)

        def close(self) -> None: ...

    monkeypatch.setattr(grpc.triton, "InferenceServerClient", Client)
    with pytest.raises(InvalidArgument, match="too long"):
        list(grpc.GrpcTransport("127.0.0.1:1").stream(_REQUEST, 5.0))
    assert cancelled == [False]
