"""HTTP over plain sockets: one connection per request in flight, one thread that reads all responses."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from urllib.parse import urlsplit

from tidal_client.errors import ConnectionFailed, DeadlineExceeded, RequestError, from_http
from tidal_client.load.sender import Finish
from tidal_client.transports.http_messages import error_message

_IDLE = -1
# Connections opened before the first request; more are opened when all are in use.
_FIRST_CONNECTIONS = 16
# Maximum time between two checks for timeouts.
_CHECK_INTERVAL_S = 0.1


class _Connection:
    """A socket, the number of the request in flight on it, and the bytes received of its response."""

    __slots__ = ("number", "received", "socket")

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.number = _IDLE
        self.received = b""


class HttpSender:
    """Sends complete HTTP requests over persistent connections."""

    def __init__(self, location: str, timeout_s: float, finish: Finish) -> None:
        parts = urlsplit(f"//{location}")
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._location, self._timeout_s, self._finish = location, timeout_s, finish
        self._selector = selectors.DefaultSelector()
        self._idle: deque[_Connection] = deque()
        # (time, connection, number) of requests in flight, oldest first: all have the same timeout.
        self._deadlines: deque[tuple[float, _Connection, int]] = deque()
        # Held while a connection passes between the two threads.
        self._lock = threading.Lock()
        self._wake, waker = socket.socketpair()
        self._selector.register(waker, selectors.EVENT_READ, None)
        self._waker = waker
        with contextlib.suppress(OSError):  # the requests report it
            self._idle.extend(self._connect() for _ in range(_FIRST_CONNECTIONS))
        self._reader = threading.Thread(target=self._read, name="tidal-load-answers", daemon=True)
        self._reader.start()

    def send(self, number: int, payload: bytes) -> None:
        """See `RequestSender.send`."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
                if connection is not None:
                    connection.number = number
            kept = connection is not None
            if connection is None:
                try:
                    connection = self._connect(number)
                except OSError as error:
                    self._finish(number, self._failed(error))
                    return
            self._deadlines.append((time.monotonic() + self._timeout_s, connection, number))
            try:
                connection.socket.sendall(payload)
                return
            except OSError as error:
                if not self._release(connection, number):
                    return
                # The server may have closed an idle connection: try the next one.
                if not kept:
                    self._finish(number, self._failed(error))
                    return

    def close(self) -> None:
        """See `RequestSender.close`."""
        self._wake.close()
        self._reader.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _connect(self, number: int = _IDLE) -> _Connection:
        opened = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(opened)
        connection.number = number
        self._selector.register(opened, selectors.EVENT_READ, connection)
        return connection

    def _read(self) -> None:
        while True:
            wait = self._deadlines[0][0] - time.monotonic() if self._deadlines else _CHECK_INTERVAL_S
            for key, _ in self._selector.select(min(max(wait, 0.0), _CHECK_INTERVAL_S)):
                if key.data is None:
                    return
                self._receive(key.data)
            self._expire(time.monotonic())

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(connection, error)
            return
        if not data:
            self._lose(connection, ConnectionResetError("the server closed the connection"))
            return
        connection.received = connection.received + data if connection.received else data
        head_end = connection.received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        status, length = _read_head(connection.received[:head_end])
        if length is None:
            self._lose(connection, ConnectionError("the response is not HTTP with a Content-Length"))
        elif len(connection.received) >= head_end + 4 + length:
            number, body = connection.number, connection.received[head_end + 4 :]
            connection.received, connection.number = b"", _IDLE
            if number == _IDLE:
                self._lose(connection, ConnectionError("a response without a request"))
                return
            self._finish(number, None if status == 200 else from_http(status, error_message(body)))
            self._idle.append(connection)

    def _expire(self, now: float) -> None:
        while self._deadlines:
            moment, connection, number = self._deadlines[0]
            if connection.number == number:
                if moment > now:
                    return
                if self._release(connection, number):
                    error = DeadlineExceeded(f"no answer from http://{self._location} within {self._timeout_s:g} s")
                    self._finish(number, error)
            self._deadlines.popleft()

    def _lose(self, connection: _Connection, reason: Exception) -> None:
        """Close a broken connection and fail its request, if any."""
        number = connection.number
        if self._release(connection, number) and number != _IDLE:
            self._finish(number, self._failed(reason))

    def _release(self, connection: _Connection, number: int) -> bool:
        """Close a connection unless it carries another request by now; return whether this call closed it."""
        with self._lock:
            if connection.number != number or connection.socket.fileno() < 0:
                return False
            connection.number = _IDLE
            with contextlib.suppress(ValueError):
                self._idle.remove(connection)
            self._selector.unregister(connection.socket)
            with contextlib.suppress(OSError):  # interrupts a thread that is still sending
                connection.socket.shutdown(socket.SHUT_RDWR)
            connection.socket.close()
            return True

    def _failed(self, reason: Exception) -> RequestError:
        return ConnectionFailed(f"no connection to http://{self._location}: {reason}")


def _read_head(head: bytes) -> tuple[int, int | None]:
    """Return the status and the body's length; None if the header lacks it or is not HTTP."""
    status, _, fields = head.partition(b"\r\n")
    try:
        code = int(status.split(b" ", 2)[1])
        for field in fields.split(b"\r\n"):
            name, _, value = field.partition(b":")
            if name.lower() == b"content-length":
                return code, int(value)
    except (IndexError, ValueError):
        return 0, None
    return code, None
