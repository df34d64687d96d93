"""Requests over gRPC: serialised messages on one channel, whose answers are not parsed."""

from __future__ import annotations

import contextlib
from typing import Any

from tidal_client.errors import ConnectionFailed, DeadlineExceeded, RequestError, from_grpc
from tidal_client.load.sender import Finish, Keep


class GrpcSender:
    """Sends serialised messages over one channel; `keep` receives the responses in bytes."""

    def __init__(self, location: str, timeout_s: float, finish: Finish, keep: Keep | None = None) -> None:
        import grpc

        from tidal_client.transports.grpc import CHANNEL

        self._location, self._timeout_s, self._finish, self._keep = location, timeout_s, finish, keep
        self._channel = grpc.insecure_channel(location, options=CHANNEL)
        self._call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        # The first requests should not wait for the connection. If it fails, they report it.
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=min(timeout_s, 5.0))

    def send(self, number: int, payload: bytes) -> None:
        """See `RequestSender.send`."""
        call = self._call.future(payload, timeout=self._timeout_s)
        call.add_done_callback(lambda done: self._ended(number, done))

    def close(self) -> None:
        """See `RequestSender.close`."""
        self._channel.close()

    def _ended(self, number: int, done: Any) -> None:
        error = self._error(done)
        if error is None and self._keep is not None:
            self._keep(number, done.result())
        self._finish(number, error)

    def _error(self, done: Any) -> RequestError | None:
        status = done.code().name
        if status == "OK":
            return None
        error = from_grpc(status, str(done.details()))
        if isinstance(error, DeadlineExceeded):
            return DeadlineExceeded(f"no answer from grpc://{self._location} within {self._timeout_s:g} s")
        if isinstance(error, ConnectionFailed):
            return ConnectionFailed(f"no connection to grpc://{self._location}: {error}")
        return error
