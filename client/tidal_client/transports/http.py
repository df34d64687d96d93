"""Triton over HTTP, blocking. The server cancels requests of streams only: a limit of Triton's HTTP endpoint."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from tidal_client.codec import InferRequest
from tidal_client.errors import Cancelled, ConnectionFailed, DeadlineExceeded, RequestError, from_http
from tidal_client.results import Array, ModelMetadata
from tidal_client.transports.http_connection import Connections
from tidal_client.transports.http_messages import (
    JSON_LENGTH,
    error_message,
    infer_body,
    model_path,
    read_max_rows,
    read_metadata,
    ready_path,
    request_bytes,
    response_arrays,
)
from tidal_client.transports.http_response import NotHttp, Response
from tidal_client.transports.http_stream import read_event, stream_body, stream_error

#: Hint for addresses that speak another protocol.
NO_HTTP: Final = "it does not speak plain HTTP: if it is the server's gRPC port, use grpc://HOST:PORT"

_NO_ROUTE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH)


def timed_out(location: str, timeout_s: float) -> RequestError:
    """Return the error for a call that had no answer in time."""
    return DeadlineExceeded(f"no answer from http://{location} within {timeout_s:g} s")


def not_connected(location: str, reason: object, *, reached: bool = True) -> RequestError:
    """Return the error for a connection that failed or broke.

    Args:
        location: ``host:port`` of the server.
        reason: Why it failed or broke.
        reached: Whether there was a connection.
    """
    error = ConnectionFailed(f"no connection to http://{location}: {reason}")
    error.reached = reached
    return error


class HttpTransport:
    """Blocking calls from any thread over persistent connections."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._connections = Connections(location)

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        body, json_length = infer_body(request)
        fields = ("Content-Type: application/octet-stream", f"{JSON_LENGTH}: {json_length}")
        path = model_path(request.model, "/infer")
        response, content = self._ask(request_bytes(self._location, path, body, *fields), timeout_s)
        if response.status != 200:
            raise from_http(response.status, error_message(content))
        with self._errors(timeout_s):
            return response_arrays(content, response.header(JSON_LENGTH))

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """See `Transport.stream`; uses the server's `generate_stream`."""
        path, body = model_path(request.model, "/generate_stream"), stream_body(request)
        with self._errors(timeout_s), self._connections.connection(timeout_s) as connection:
            connection.send(request_bytes(self._location, path, body, "Content-Type: application/json"))
            response = connection.response()
            if response.status != 200:
                raise stream_error(response.status, response.read())
            rest = b""
            while part := response.read_part():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if (outputs := read_event(line)) is not None:
                        yield outputs
                        connection.deadline = time.monotonic() + timeout_s
            connection.keep(response)

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """See `Transport.ready`."""
        response, _ = self._ask(self._get(ready_path(model)), timeout_s)
        return response.status == 200

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        response, content = self._ask(self._get(model_path(model)), timeout_s)
        if response.status != 200:
            raise from_http(response.status, error_message(content))
        with self._errors(timeout_s):
            return read_metadata(content)

    def max_rows(self, model: str, timeout_s: float) -> int:
        """See `Transport.max_rows`."""
        response, content = self._ask(self._get(model_path(model, "/config")), timeout_s)
        if response.status != 200:
            raise from_http(response.status, error_message(content))
        with self._errors(timeout_s):
            return read_max_rows(content)

    def close(self) -> None:
        """Close the connections; calls of other threads end in `Cancelled`."""
        self._connections.close()

    def _get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {self._location}\r\n\r\n".encode()

    def _ask(self, request: bytes, timeout_s: float) -> tuple[Response, bytes]:
        """Send a request; return the response and its body."""
        with self._errors(timeout_s), self._connections.connection(timeout_s) as connection:
            connection.send(request)
            return connection.answer()

    @contextmanager
    def _errors(self, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if self._connections.closed:
                raise Cancelled("the client was closed before the response arrived") from None
            if isinstance(error, TimeoutError):
                raise timed_out(self._location, timeout_s) from None
            refused = isinstance(error, ConnectionRefusedError | socket.gaierror) or (
                isinstance(error, OSError) and error.errno in _NO_ROUTE
            )
            reason = NO_HTTP if isinstance(error, NotHttp) else error
            raise not_connected(self._location, reason, reached=not refused) from None
