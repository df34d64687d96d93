"""HTTP requests that a client library would not send, over a socket of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

INFER = "/v2/models/echo/infer"
VALID = b'{"inputs":[{"name":"SECONDS","shape":[1],"datatype":"FP32","data":[0]}]}'
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_BLOCK = 1 << 20
_TIMEOUT_S = 60.0


def exchange(
    address: str,
    body: Iterable[bytes],
    headers: Sequence[tuple[str, object]] = (),
    path: str = INFER,
    method: str = "POST",
) -> str:
    """Send a request until the server closes the connection; return the response, empty if there is none."""
    host, port = address.split(":")
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *(f"{name}: {value}" for name, value in headers)]
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        try:
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            for part in body:
                connection.sendall(part)
        except OSError:
            pass  # the server refused it before it was sent completely
        return read_answer(connection)


def read_answer(connection: socket.socket) -> str:
    """Read until the end of the first response or of the connection."""
    answer = b""
    try:
        while not _complete(answer) and (part := connection.recv(1 << 16)):
            answer += part
    except OSError:
        pass
    return answer.decode(errors="replace")


def _complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if b"transfer-encoding: chunked" in head.lower():
        return body.endswith(b"0\r\n\r\n")
    return bool(found) and len(body) >= int(lengths[0] if lengths else 0)


def status(answer: str) -> int:
    """Return the status code of a response, 0 for none."""
    return int(answer.split(" ", 2)[1]) if answer else 0


def filled(size: int, byte: bytes = b"a") -> Iterable[bytes]:
    """Yield `size` equal bytes in blocks."""
    for sent in range(0, size, _BLOCK):
        yield byte * min(_BLOCK, size - sent)


def chunks(count: int, data: bytes = b"x") -> Iterable[bytes]:
    """Yield `count` chunks with the same data, and the terminating chunk."""
    chunk = b"%x\r\n%s\r\n" % (len(data), data)
    at_once = max(1, _BLOCK // len(chunk))
    for sent in range(0, count, at_once):
        yield chunk * min(at_once, count - sent)
    yield b"0\r\n\r\n"
