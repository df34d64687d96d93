"""uvicorn's HTTP protocol with limits of headers, time and connections, whose refusals are answers like all others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tidal_gateway.edge.exchange import ABORT_KEY, BROKEN_KEY, COMPLETE_KEY, FLOW_KEY, WATCH_KEY, Exchange, request_id
from tidal_gateway.errors import Refusal
from tidal_gateway.settings import GatewaySettings

# By status: code of the error, and its sentence.
_REFUSALS: Final = {
    400: ("invalid_http", "the request is not valid HTTP; send HTTP/1.1"),
    408: ("timeout", "the headers of the request did not arrive in time"),
    431: ("headers_too_large", "the headers of the request are too large; accepted are up to max_header_bytes"),
    503: ("too_many_connections", "there are too many connections; try again later"),
}
# Requests that may wait after one that is being answered while the connection is read, which alone detects its end.
_MAX_WAITING: Final = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections.

    Attributes:
        max_connections: Maximum number of connections of a worker.
        max_header_bytes: Largest total size of the headers.
        header_timeout_s: Longest time until they are complete, in seconds.
        max_waiting_bytes: Largest body that is read of a request after one that is being answered.
    """

    max_connections: int
    max_header_bytes: int
    header_timeout_s: float
    max_waiting_bytes: int


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a worker share.

    Attributes:
        limits: Limits of connections.
        refused: Returns status, headers and body of the answer to a request to a path, in the shape of the path's API.
        record: Counts and logs a request that was answered here.
    """

    limits: ConnectionLimits
    refused: Callable[[Refusal, str], tuple[int, dict[str, str], bytes]]
    record: Callable[[Exchange], None]


def limits_of(settings: GatewaySettings) -> ConnectionLimits:
    """Return the limits that the settings name."""
    return ConnectionLimits(
        settings.max_connections, settings.max_header_bytes, settings.header_timeout_s, settings.max_body_bytes
    )


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
        # Bytes after the request that are no HTTP have closed the connection; uvloop raises where asyncio does not.
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LimitedProtocol(HttpToolsProtocol):
    """One connection; uvicorn creates it with the class attribute `shared` of the worker."""

    shared: ClassVar[Shared]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.url = b""
        self._header_bytes = 0
        self._in_headers = True
        self._refused = False
        self._refusal = 0
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False
        self._watching: set[Callable[[], None]] = set()

    def connection_made(self, transport: Any) -> None:
        """Refuse the connection if there are too many, and start to wait for its first headers."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > self.shared.limits.max_connections:
            self._refuse(503)

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
            if self._timer is None and not self._refused:
                self._start_timer()
        if self._timer is None and self._is_idle() and self.timeout_keep_alive_task is None:
            # Bytes that begin no request, which have ended the wait of an idle connection.
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP."""
        if self._is_idle() or not self.cycle.more_body:
            self._refuse(400)
            return
        # The body of a request that has begun: its route answers.
        self._refused = True
        self.cycle.keep_alive = False
        self.cycle.scope[BROKEN_KEY] = True  # type: ignore[typeddict-unknown-key]
        self.cycle.message_event.set()

    def on_message_begin(self) -> None:
        """Begin to count the headers of the next request. A timer starts only if they arrive in several parts."""
        super().on_message_begin()
        self._header_bytes, self._in_headers = 0, True
        self.scope[ABORT_KEY] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope[FLOW_KEY] = self.flow  # type: ignore[typeddict-unknown-key]
        self._stop_timer()
        self._began = time.monotonic()

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
            self._read_on()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        if not self._refused:
            super().on_body(body)
            self._read_on()

    def on_message_complete(self) -> None:
        """Pass the end of the body on."""
        if self._refused:
            return
        self.scope[COMPLETE_KEY] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()
        if self._is_idle() and self._timer is not None:  # a body of which the answer did not wait for the end
            self._stop_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """Start the next request, or send the refusal that waits for the answers before it."""
        super().on_response_complete()
        if not self._is_idle() or self.transport.is_closing():
            return
        if self._refusal:
            self._send_refusal(self._refusal)
        elif self.cycle.more_body:  # refused before the end of its body, for which nobody waits any more
            self._unset_keepalive_if_required()
            self._start_timer()

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

    def _read_on(self) -> None:
        """Read on, within limits, behind a request that is being answered."""
        if 0 < len(self.pipeline) <= _MAX_WAITING and len(self.cycle.body) <= self.shared.limits.max_waiting_bytes:
            self.flow.resume_reading()

    def _is_idle(self) -> bool:
        """Whether all requests that have begun are answered."""
        return self.cycle is None or self.cycle.response_complete

    def _check_headers(self) -> None:
        if not self._refused and self._header_bytes > self.shared.limits.max_header_bytes:
            self._refuse(431)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._began = time.monotonic()
        self._timer = self.loop.call_later(self.shared.limits.header_timeout_s, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._in_headers:
            self._refuse(408)
        else:  # the rest of a body whose request is answered
            self._refused = True
            self.transport.close()

    def _refuse(self, status: int) -> None:
        """Answer with an error after the answers to all requests before, and close the connection."""
        self._refused = True
        self._stop_timer()
        if self._is_idle():
            self._send_refusal(status)
        else:
            self._refusal = status

    def _send_refusal(self, status: int) -> None:
        if self.transport.is_closing():
            return
        code, message = _REFUSALS[status]
        exchange = self._exchange()
        refusal = Refusal(status, message, code=code, retry_after_s=1 if status == 503 else None)
        # Where the path is not known, it is empty.
        exchange.status, headers, content = self.shared.refused(refusal, exchange.path)
        exchange.code, exchange.finished = code, True
        headers |= {
            "content-length": str(len(content)),
            "x-request-id": exchange.request_id,
            "connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[exchange.status] + lines.encode() + b"\r\n" + content)
        self.transport.close()
        self.shared.record(exchange)

    def _exchange(self) -> Exchange:
        """What is known of the request that is refused."""
        method, path, sent_id = "", "", None
        if self._in_headers or self.url:
            sent_id = next((value for name, value in self.headers or () if name == b"x-request-id"), None)
        if self.url:
            method = self.parser.get_method().decode("latin-1")
            path = self.url.decode("latin-1").partition("?")[0]
        client = "" if self.client is None else self.client[0]
        identifier = request_id(None if sent_id is None else sent_id.decode("latin-1"))
        return Exchange(identifier, method, path, client, self._began)
