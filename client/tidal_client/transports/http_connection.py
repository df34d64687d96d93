"""Blocking HTTP/1.1 connections, of which each carries one request at a time, and a pool of them for many threads."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from tidal_client.transports.http_response import Response

#: Seconds after which an idle connection is closed: a server that shuts down waits for open connections.
IDLE_S: Final = 15.0
#: Seconds since it was opened after which a connection is closed with its response: under load none would be idle.
LIFETIME_S: Final = 5.0
# Larger reads allocate new pages each time.
_READ = 1 << 16


class Connection:
    """A connection; every read and write ends at `deadline`.

    Attributes:
        deadline: Time of `time.monotonic`.
        idle_since: Time of its last response, by `time.monotonic`; 0 while the server may send more of one.
    """

    def __init__(self, host: str, port: int, deadline: float) -> None:
        self.deadline = deadline
        self.idle_since = 0.0
        self._opened = time.monotonic()
        self._socket = socket.create_connection((host, port), self._left_s())
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(_READ))

    def send(self, request: bytes) -> None:
        """Send a complete request.

        A server may answer and close the connection before it has read a large request. An error is therefore ignored
        while a response can be read.

        Raises:
            OSError: The server does not read it before the deadline.
        """
        self._socket.settimeout(self._left_s())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(request)

    def response(self) -> Response:
        """Wait for the response to the request that was sent; its body has not been read.

        Raises:
            OSError: The response is not HTTP, ends too early, or does not come before the deadline.
        """
        return Response(self._receive)

    def answer(self) -> tuple[Response, bytes]:
        """Wait for the response and its body, and keep the connection for further requests if the server does.

        Raises:
            OSError: See `response`.
        """
        response = self.response()
        content = response.read()
        self.keep(response)
        return response, content

    def keep(self, response: Response) -> None:
        """Keep the connection for further requests, unless it is old or the server closes it after this response."""
        now = time.monotonic()
        if response.keeps_connection and now < self._opened + LIFETIME_S:
            self.idle_since = now

    def usable(self) -> bool:
        """Whether the connection can carry another request: the server has neither closed it nor sent anything."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def interrupt(self) -> None:
        """End reads and writes of another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _left_s(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _receive(self) -> memoryview:
        self._socket.settimeout(self._left_s())
        size = self._socket.recv_into(self._buffer)
        self._left_s()  # a busy machine may return data that arrived after the deadline
        return self._buffer[:size]


class Connections:
    """Connections to one server, shared by threads: as many as there are requests at a time.

    Args:
        location: ``host:port`` of the server.
    """

    def __init__(self, location: str) -> None:
        parts = urlsplit(f"//{location}")
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._lock = threading.Lock()
        #: Oldest first; the newest is used first, so that the others can expire.
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        #: Closes idle connections; None while there are none.
        self._timer: threading.Timer | None = None
        self.closed = False

    @contextlib.contextmanager
    def connection(self, timeout_s: float, *, fresh: bool = False) -> Iterator[Connection]:
        """Lend a connection for one request; it is closed unless the borrower keeps it (`Connection.keep`).

        Args:
            timeout_s: Seconds until its deadline, connecting included, name resolution not.
            fresh: Whether to open one also if another is idle.

        Raises:
            OSError: No connection can be opened before the deadline, or `close` was called.
        """
        connection = None if fresh else self.borrow_idle(timeout_s)
        if connection is None:
            connection = Connection(self._host, self._port, time.monotonic() + timeout_s)
            self._lend(connection)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def borrow_idle(self, timeout_s: float) -> Connection | None:
        """Return a connection that is open and idle, for one request; None if there is none. See `give_back`.

        Args:
            timeout_s: Seconds until its deadline.

        Raises:
            ConnectionAbortedError: `close` was called.
        """
        connection = self._idle_connection()
        if connection is not None:
            connection.deadline = time.monotonic() + timeout_s
            self._lend(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Take a connection back; it is closed unless the borrower keeps it (`Connection.keep`)."""
        with self._lock:
            self._used.discard(connection)
            keep = connection.idle_since > 0 and not self.closed
            if keep:
                self._idle.append(connection)
                if self._timer is None:
                    self._start_timer(IDLE_S)
        if not keep:
            connection.close()

    def close_idle(self) -> None:
        """Close the connections that carry no request."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close idle connections and end the requests of the others."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
            for connection in self._used:
                connection.interrupt()
            if self._timer is not None:
                self._timer.cancel()
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        self.close()

    def _idle_connection(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()

    def _lend(self, connection: Connection) -> None:
        connection.idle_since = 0.0
        with self._lock:
            if not self.closed:
                self._used.add(connection)
                return
        connection.close()
        raise ConnectionAbortedError

    def _start_timer(self, seconds: float) -> None:
        timer = threading.Timer(seconds, _expire, (weakref.ref(self),))
        timer.daemon = True
        # Without another thread the next connection that is given back tries again.
        with contextlib.suppress(RuntimeError):
            timer.start()
            self._timer = timer

    def _close_expired(self) -> None:
        with self._lock:
            now = time.monotonic()
            while self._idle and self._idle[0].idle_since + IDLE_S <= now:
                self._idle.pop(0).close()
            self._timer = None
            if self._idle:
                self._start_timer(self._idle[0].idle_since + IDLE_S - now)


def _expire(of: weakref.ref[Connections]) -> None:
    connections = of()
    if connections is not None:
        connections._close_expired()
