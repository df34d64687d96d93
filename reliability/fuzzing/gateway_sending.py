"""Sends requests to a gateway as bytes, each over its own connection, and records the status of each answer."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from reliability.fuzzing.gateway_malformed import RawRequest

_TIMEOUT_S = 60.0
# The longest wait for an answer to bytes that may be the beginning of a request.
_INCOMPLETE_S = 0.2
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
#: Ends of requests without an answer.
CLOSED, SILENT, REFUSED = "closed", "no answer", "no gateway"
# What a gateway answers to a request whose own deadline has passed.
_DEADLINE = b'"deadline"'


@dataclass(slots=True)
class FuzzResult:
    """Outcomes of malformed requests.

    Attributes:
        ends: Number of requests by status, or by one of the constants above.
        wrong: Kinds and answers of requests that were answered with 5xx, or not at all.
    """

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of requests."""
        return sum(self.ends.values())

    def add(self, what: str, end: str, answer: bytes = b"") -> None:
        """Record an outcome."""
        failed = end in (SILENT, REFUSED) or end.startswith("5")
        # A deadline in milliseconds may pass: 504 says so.
        if end == "504" and _DEADLINE in answer:
            end, failed = "504 deadline", False
        self.ends[end] += 1
        if failed:
            self.wrong.append(f"{what}: {end} {answer[-300:].decode(errors='replace')}")

    def merge(self, other: FuzzResult) -> FuzzResult:
        """Return the outcomes of both."""
        return FuzzResult(self.ends + other.ends, self.wrong + other.wrong)


def send_raw(address: str, requests: Iterable[RawRequest]) -> FuzzResult:
    """Send requests one after the other.

    Args:
        address: ``host:port`` of the gateway.
        requests: Requests to send.
    """
    host, _, port = address.partition(":")
    found = FuzzResult()
    for request in requests:
        try:
            connection = socket.create_connection((host, int(port)), _TIMEOUT_S)
        except OSError:
            found.add(request.what, REFUSED)
            continue
        with connection:
            end, answer = _sent(connection, request)
        found.add(request.what, end, answer)
    return found


def _sent(connection: socket.socket, request: RawRequest) -> tuple[str, bytes]:
    answer = b""
    try:
        connection.sendall(request.content)
        if not request.waits:
            return "left", b""
        connection.settimeout(_TIMEOUT_S if request.complete else _INCOMPLETE_S)
        has_body = not request.content.startswith(b"HEAD ")
        while not _is_whole(answer, has_body=has_body) and (part := connection.recv(65_536)):
            answer += part
    except TimeoutError:
        return (SILENT if request.complete else "waiting"), b""
    except OSError:  # closed while the request was being sent; its answer may have arrived
        pass
    statuses = [status.decode() for status in _STATUS.findall(answer)]
    worst = max(statuses, default=CLOSED)
    return worst, answer


def _is_whole(answer: bytes, *, has_body: bool = True) -> bool:
    """Whether the first final answer has arrived."""
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator or not has_body:
        return bool(separator)
    length = _LENGTH.search(head)
    if length is None:
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(length[1]) or b"\r\nallow:" in head.lower()
