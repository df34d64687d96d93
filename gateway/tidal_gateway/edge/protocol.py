"""uvicorn's HTTP protocol with limits on headers, slow clients and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tidal_gateway.edge.exchange import ABORT_KEY, WATCH_KEY
from tidal_gateway.settings import Settings

_SENTENCES: Final = {
    408: "the headers of the request did not arrive in time",
    431: "the headers of the request are too large; accepted are up to max_header_bytes",
    503: "there are too many connections; try again later",
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections.

    Attributes:
        max_connections: Largest number of connections of a worker.
        max_header_bytes: Largest total size of the headers.
        header_timeout_s: Longest time until they are complete, in seconds.
    """

    max_connections: int
    max_header_bytes: int
    header_timeout_s: float


def limits_of(settings: Settings) -> ConnectionLimits:
    """Return the limits that the settings name."""
    return ConnectionLimits(settings.max_connections, settings.max_header_bytes, settings.header_timeout_s)


class ResponseTransport:
    """The transport of one response: can send its head with the first part of its body, in one system call.

    Args:
        transport: Transport of the connection.
        joined: Whether the head is sent with the first part of the body.
    """

    __slots__ = ("_head", "_joined", "_transport")

    def __init__(self, transport: asyncio.Transport, joined: bool) -> None:
        self._transport = transport
        self._head, self._joined = b"", joined

    def write(self, data: bytes) -> None:
        """Keep the head if it is to be joined; write everything else."""
        if self._joined and not self._head:
            self._head = data
            return
        if self._joined:
            data, self._joined = self._head + data, False
        # Bytes behind the request that are no HTTP have closed the connection; uvloop raises where asyncio does not.
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LimitedProtocol(HttpToolsProtocol):
    """One connection; uvicorn creates it with the class attribute `limits` of the worker."""

    limits: ConnectionLimits

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
        self._in_headers = True
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False
        self._watching: set[Callable[[], None]] = set()

    def connection_made(self, transport: Any) -> None:
        """Refuse the connection if there are too many, and start to wait for its first headers."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503)
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and report the end of the connection."""
        self._stop_timer()
        super().connection_lost(exc)
        self._lost = True
        for lost in tuple(self._watching):
            lost()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, up to the limits."""
        if self._refused:
            return
        super().data_received(data)
        if self._in_headers and not self._refused:
            # The parser keeps a header that is not complete.
            self._header_bytes += len(data)
            self._check_headers()

    def on_message_begin(self) -> None:
        """Begin to count and wait for the headers of the next request."""
        super().on_message_begin()
        self._header_bytes, self._in_headers = 0, True
        self.scope[ABORT_KEY] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """Pass the request on."""
        self._in_headers = False
        self._stop_timer()
        self._header_bytes += len(self.url)
        self._check_headers()
        if not self._refused:
            super().on_headers_complete()
            if self.cycle is not None:
                # Only there a body always follows the head, and nothing precedes it.
                joined = self.scope["method"] == "POST" and not self.expect_100_continue
                self.cycle.transport = ResponseTransport(self.transport, joined)  # type: ignore[assignment]
                self.scope[WATCH_KEY] = partial(self._watch, self.cycle)  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass the end of the body on."""
        if not self._refused:
            super().on_message_complete()

    def _watch(self, cycle: Any, lost: Callable[[], None]) -> Callable[[], None]:
        def ended() -> None:
            # uvicorn marks the last one of pipelined requests only.
            cycle.disconnected = True
            lost()

        # A large body has paused the reading, without which the end of the connection is not seen.
        self.flow.resume_reading()
        self._watching.add(ended)
        if self._lost:
            ended()
        return lambda: self._watching.discard(ended)

    def _check_headers(self) -> None:
        if not self._refused and self._header_bytes > self.limits.max_header_bytes:
            self._refuse(431)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.limits.header_timeout_s, self._refuse, 408)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int) -> None:
        self._refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            error = {"message": _SENTENCES[status], "type": "invalid_request_error", "param": None, "code": None}
            content = orjson.dumps({"error": error})
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(content)
            self.transport.write(STATUS_LINE[status] + head + content)
        self.transport.close()
