"""Calls of another node's server over HTTP, for less processor time than gRPC takes; without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidal.arlo.node_channel import CallFailed
from tidal.requests import Array
from tidal_client.codec import InferRequest
from tidal_client.transports.http_connection import Connection, Connections
from tidal_client.transports.http_messages import (
    JSON_LENGTH,
    error_message,
    infer_body,
    model_path,
    request_bytes,
    response_arrays,
)
from tidal_client.transports.http_response import Response

_LIVE: Final = "/v2/health/live"
# Cancelled, and unavailable.
_UNREACHABLE = (499, 503)
# Bytes of arrays above which a worker sends: more than this may have to wait until the server reads it.
_MOST_SENT_AT_ONCE: Final = 32 << 10


class HttpNodeChannel:
    """See `tidal.arlo.node_channel.NodeChannel`. The server runs a request also after its caller has given it up.

    Args:
        location: `host:port` of the server's HTTP endpoint.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._connections = Connections(location)

    def infer(self, request: InferRequest, version: int, timeout_s: float) -> dict[str, Array]:
        """See `NodeChannel.infer`."""
        return _arrays(*self._ask(self._message(request, version), timeout_s))

    def start(self, request: InferRequest, version: int, timeout_s: float) -> HttpAnswer | None:
        """See `NodeChannel.start`."""
        if sum(array.nbytes for array in request.inputs.values()) > _MOST_SENT_AT_ONCE:
            return None
        with _failures():
            connection = self._connections.borrow_idle(timeout_s)
        if connection is None:
            return None
        try:
            with _failures():
                connection.send(self._message(request, version))
        except CallFailed:
            self._connections.give_back(connection)
            raise
        return HttpAnswer(self._connections, connection)

    def live(self, timeout_s: float) -> bool:
        """See `NodeChannel.live`; a server that is about to end still answers over connections that are open."""
        message = f"GET {_LIVE} HTTP/1.1\r\nHost: {self._location}\r\n\r\n".encode()
        response, content = self._ask(message, timeout_s, fresh=True)
        return response.status == 200 and not content  # other servers answer 200 to every path, with a text

    def close_idle(self) -> None:
        """See `NodeChannel.close_idle`."""
        self._connections.close_idle()

    def close(self) -> None:
        """See `NodeChannel.close`."""
        self._connections.close()

    def _message(self, request: InferRequest, version: int) -> bytes:
        body, json_length = infer_body(request)
        path = model_path(request.model, f"/versions/{version}/infer")
        fields = ("Content-Type: application/octet-stream", f"{JSON_LENGTH}: {json_length}")
        return request_bytes(self._location, path, body, *fields)

    def _ask(self, request: bytes, timeout_s: float, *, fresh: bool = False) -> tuple[Response, bytes]:
        with _failures(), self._connections.connection(timeout_s, fresh=fresh) as connection:
            connection.send(request)
            return connection.answer()


class HttpAnswer:
    """See `tidal.arlo.node_channel.PendingAnswer`.

    Args:
        connections: Connections to the server.
        connection: The one that the request was sent on.
    """

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections, self._connection = connections, connection

    def result(self) -> dict[str, Array]:
        """See `PendingAnswer.result`."""
        try:
            with _failures():
                answer = self._connection.answer()
        finally:
            self._connections.give_back(self._connection)
        return _arrays(*answer)


def _arrays(response: Response, content: bytes) -> dict[str, Array]:
    """Return the arrays of a response by output name."""
    if response.status != 200:
        # Errors of Triton are JSON: another one is of a server that is no Triton, or of something in between.
        foreign = not content.lstrip().startswith(b"{")
        message = error_message(content) or f"HTTP status {response.status}"
        raise CallFailed(message, unreachable=foreign or response.status in _UNREACHABLE)
    try:
        return response_arrays(content, response.header(JSON_LENGTH))
    except (ValueError, KeyError) as error:
        raise CallFailed(f"the response is not one of Triton: {error!r}", unreachable=True) from None


@contextmanager
def _failures() -> Iterator[None]:
    """Convert errors of connections."""
    try:
        yield
    except TimeoutError:
        raise CallFailed("no answer in time", timed_out=True) from None
    except (OSError, UnicodeError) as error:  # the latter: a host name that cannot be one
        # `str` would begin with the number in brackets, as codes of errors do.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CallFailed(reason, unreachable=True) from None
