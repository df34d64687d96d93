"""Clients of the measurements: HTTP over raw sockets, which cost less than what they measure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Request:
    """One request that is sent again and again.

    Attributes:
        address: ``host:port``.
        path: Path of the URL.
        body: JSON.
        headers: Further headers.
    """

    address: str
    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Return the bytes of the request."""
        content = json.dumps(self.body).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.path} HTTP/1.1\r\nhost: {self.address}\r\n{lines}\r\n".encode() + content


class Connection(asyncio.Protocol):
    """A connection that is kept alive, with one request at a time.

    Attributes:
        head: Status line and headers of the last answer.
    """

    def __init__(self) -> None:
        self.head = b""
        self._received = b""
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._parts: asyncio.Queue[bytes | None] | None = None

    @classmethod
    async def open(cls, address: str) -> Connection:
        """Connect to ``host:port``."""
        host, _, port = address.rpartition(":")
        _, found = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are no instances of asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request without an answer, or end its stream."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("the server closed the connection"))
        if self._parts is not None:
            self._parts.put_nowait(None)

    def data_received(self, data: bytes) -> None:
        """Pass on a part of a stream, or a whole answer when it is complete."""
        if self._parts is not None:
            self._parts.put_nowait(data)
            return
        if self._waiting is None or self._waiting.done():  # the rest of a stream that nobody reads any more
            return
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        lines = self._received[:head].lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(self._received) >= head + 4 + length:
            self.head = self._received[: head + 2]
            status, body = int(lines[0].split()[1]), self._received[head + 4 :]
            self._received = b""
            self._waiting.set_result((status, body))

    def begin(self, content: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; the result is status and body of its answer, which has a `Content-Length`."""
        self._waiting = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.write(content)
        return self._waiting

    async def send(self, content: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer, which has a `Content-Length`."""
        return await self.begin(content)

    async def stream(self, content: bytes, end: bytes) -> tuple[int, float]:
        """Send a request; return the number of events, and when `end` arrived, by `time.monotonic()`."""
        self._parts = asyncio.Queue()
        self._transport.write(content)
        events, tail = 0, b""
        while (part := await self._parts.get()) is not None:
            events += part.count(b"data: {") + part.count(b"data:{")
            tail += part
            if end in tail:
                break
            tail = tail[-len(end) :]
        self._parts = None
        return events, time.monotonic()

    def close(self) -> None:
        """Close the connection, also in the middle of an answer."""
        self._transport.abort()


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A closed loop.

    Attributes:
        per_second: Answers per second.
        p50_ms: Median latency.
        p99_ms: 99th percentile of it.
        failed: Number of other answers than 200.
        answered: Number of answers.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    answered: int


async def closed_loop(request: Request, *, concurrency: int, seconds: float) -> LoadResult:
    """Keep requests in flight for some time.

    Args:
        request: Request to send.
        concurrency: Number of requests in flight, each over its own connection.
        seconds: Duration.
    """
    content, latencies, failed = request.encoded(), list[float](), 0
    connections = [await Connection.open(request.address) for _ in range(concurrency)]
    began = time.monotonic()

    async def one(connection: Connection) -> None:
        nonlocal failed
        while (sent := time.monotonic()) < began + seconds:
            status, _ = await connection.send(content)
            latencies.append(time.monotonic() - sent)
            failed += status != 200

    await asyncio.gather(*map(one, connections))
    elapsed = time.monotonic() - began
    for connection in connections:
        connection.close()
    return LoadResult(
        len(latencies) / elapsed, percentile(latencies, 50), percentile(latencies, 99), failed, len(latencies)
    )


def percentile(seconds: Sequence[float], share: float) -> float:
    """Return a percentile of durations, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] * 1e3
