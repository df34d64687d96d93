"""An HTTP server that gives every request the same answer, which costs next to nothing to serve."""

from __future__ import annotations

import asyncio
import re

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class ConstantHttp(asyncio.Protocol):
    """Answers each complete HTTP request of one connection alike.

    Args:
        answer: The whole answer, with its head.
    """

    def __init__(self, answer: bytes) -> None:
        self._answer, self._received = answer, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (head := self._received.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._received, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            self._received = self._received[end:]
            self._transport.write(self._answer)
