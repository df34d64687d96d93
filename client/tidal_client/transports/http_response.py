"""A response over HTTP/1.1, parsed while it arrives."""

from __future__ import annotations

from collections.abc import Callable

from httptools import HttpParserError, HttpResponseParser


class NotHttp(ConnectionError):
    """What a server sent is not HTTP."""


class Response:
    """A response whose status and header have arrived; its body is read on demand.

    Args:
        receive: Waits for further bytes and returns them; none at the end of the connection.

    Raises:
        NotHttp: It is not HTTP.
        ConnectionError: The connection ends before the response does.
    """

    def __init__(self, receive: Callable[[], memoryview]) -> None:
        self._receive = receive
        self._parser = HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._has_header = self._has_ended = False
        self.keeps_connection = False
        """Whether the server keeps the connection after the response, known when the body has been read."""
        while not self._has_header:
            self._read()

    @property
    def status(self) -> int:
        """Status code."""
        return int(self._parser.get_status_code())

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if there is none of this name."""
        value = self._headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    def read(self) -> bytes:
        """Return the rest of the body."""
        while not self._has_ended:
            self._read()
        return self._taken()

    def read_part(self) -> bytes:
        """Wait for the next part of the body and return it; nothing at its end."""
        while not self._parts and not self._has_ended:
            self._read()
        return self._taken()

    def on_message_begin(self) -> None:
        """Called by the parser; nothing was asked for that a second response could answer."""
        if self._has_ended:
            raise ValueError("a second response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Called by the parser; informational responses come before the one that counts."""
        self._has_header = self.status >= 200

    def on_body(self, part: bytes) -> None:
        """Called by the parser."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not self._has_header:  # of an informational response
            self._headers.clear()
            return
        self._has_ended, self.keeps_connection = True, self._parser.should_keep_alive()

    def _taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self) -> None:
        received = self._receive()
        if received:
            try:
                self._parser.feed_data(received)
            except HttpParserError as error:
                raise NotHttp(str(error)) from None
        elif self._has_header and not {b"content-length", b"transfer-encoding"} & self._headers.keys():
            self._has_ended = True  # the end of the connection is that of the body
        else:
            raise ConnectionError("the server closed the connection")
