"""Calls of another node's server over HTTP, for a third of the processor time that gRPC takes; without TLS."""

from __future__ import annotations

import time
from typing import Final

from tidal.arlo.node_channel import CallFailed
from tidal.requests import Array
from tidal_client.codec import InferRequest
from tidal_client.transports.http_connection import Connections
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
        body, json_length = infer_body(request)
        path = model_path(request.model, f"/versions/{version}/infer")
        response, content = self._ask(
            request_bytes(self._location, path, body, f"{JSON_LENGTH}: {json_length}"), timeout_s
        )
        if response.status != 200:
            raise CallFailed(error_message(content), unreachable=response.status in _UNREACHABLE)
        try:
            return response_arrays(content, response.header(JSON_LENGTH))
        except (ValueError, KeyError) as error:
            raise CallFailed(f"the response is not one of Triton: {error!r}") from None

    def live(self, timeout_s: float) -> bool:
        """See `NodeChannel.live`."""
        response, _ = self._ask(f"GET {_LIVE} HTTP/1.1\r\nHost: {self._location}\r\n\r\n".encode(), timeout_s)
        return response.status == 200

    def close(self) -> None:
        """See `NodeChannel.close`."""
        self._connections.close()

    def _ask(self, request: bytes, timeout_s: float) -> tuple[Response, bytes]:
        """Send a request; return the response and its body."""
        try:
            with self._connections.connection(timeout_s) as connection:
                response = connection.ask(request)
                content = response.read()
                if response.keeps_connection:
                    connection.idle_since = time.monotonic()
        except TimeoutError:
            raise CallFailed(f"no answer within {timeout_s:g} s", timed_out=True) from None
        except OSError as error:
            # `str` would begin with the number in brackets, as codes of errors do.
            raise CallFailed(error.strerror or str(error) or type(error).__name__, unreachable=True) from None
        return response, content
