"""The blocking HTTP client with servers that answer in unusual ways."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable

import pytest

from testing.listeners import answering, listening
from testing.waiting import until
from tidal_client import Client, ConnectionFailed, DeadlineExceeded, InvalidArgument, NotFound
from tidal_client.transports import http_connection
from tidal_client.transports.http import HttpTransport

_JSON = json.dumps({"outputs": [{"name": "label", "datatype": "BYTES", "shape": [1, 1], "data": ["long"]}]}).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_JSON), _JSON)


def _split(answer: bytes, size: int = 7) -> list[bytes]:
    return [answer[start : start + size] for start in range(0, len(answer), size)]


def _chunk(content: bytes, note: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(content), note, content)


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("serve", "connections"),
    [
        (answering(_ANSWER), 1),
        (answering(*_split(_ANSWER)), 1),
        (answering(_CHUNKED, _chunk(_JSON[:9], b";note"), *_split(_chunk(_JSON[9:])), b"0\r\nTrailer: x\r\n\r\n"), 1),
        (answering(_ANSWER.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)), 2),
        (answering(b"HTTP/1.0 200 OK\r\n\r\n", _JSON, then_close=True), 2),
        (answering(_ANSWER, then_close=True), 2),
        (answering(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + _ANSWER), 1),
    ],
    ids=["whole", "in pieces", "chunked", "connection: close", "until the end", "closed without notice", "hints first"],
)  # fmt: skip
def test_forms_of_a_response(serve: Callable[[socket.socket], None], connections: int) -> None:
    with listening(serve) as server, Client(server.url, timeout_s=5) as client:
        for _ in range(2):
            assert client.classify("m", "hi").label == "long"
            time.sleep(0.05)
        assert len(server.connections) == connections


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "IDLE_S", 0.2)
    ends = list[float]()

    def serve(connection: socket.socket) -> None:
        answering(_ANSWER)(connection)
        ends.append(time.monotonic())

    with listening(serve) as server, Client(server.url, timeout_s=5) as client:
        for _ in range(2):
            began = time.monotonic()
            client.classify("m", "hi")
            assert until(lambda: bool(ends))
            assert ends.pop() - began >= 0.2
        assert len(server.connections) == 2


def test_a_connection_is_replaced_also_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a server that shuts down would wait for it until its exit timeout."""
    monkeypatch.setattr(http_connection, "LIFETIME_S", 0.3)
    with listening(answering(_ANSWER)) as listener, Client(listener.url) as client:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert client.classify("m", "x").label == "long"
        assert 2 <= len(listener.connections) <= 4


def test_connections_outlast_a_lack_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "IDLE_S", 0.1)

    def start(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        answering(_ANSWER)(connection)
        ended.set()

    with listening(serve) as listener, Client(listener.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Timer, "start", start)
            assert client.classify("m", "x").label == "long"
        assert client.classify("m", "x").label == "long"
        assert len(listener.connections) == 1
        assert ended.wait(10)  # idle connections are closed again


def test_an_unreferenced_client_closes_its_connections() -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        answering(_ANSWER)(connection)
        ended.set()

    with listening(serve) as server:
        Client(server.url, timeout_s=5).classify("m", "hi")
        assert ended.wait(5)


def test_an_early_error_to_a_large_request_is_reported() -> None:
    body = b'{"error": "the body is too large"}'
    refusal = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(refusal)
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        connection.close()

    with (
        listening(serve) as server,
        Client(server.url, timeout_s=5) as client,
        pytest.raises(InvalidArgument, match="the body is too large"),
    ):
        client.classify("m", "x" * 50_000_000)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00", "does not speak plain HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "no connection to"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "no connection to"),
        (_ANSWER[:-3], "the server closed the connection"),
        (b"", "the server closed the connection"),
        (_ANSWER + _ANSWER, "does not speak plain HTTP"),
    ],
)
def test_a_malformed_response_is_a_failed_connection(answer: bytes, message: str) -> None:
    with (
        listening(answering(answer, then_close=True)) as server,
        Client(server.url, timeout_s=5) as client,
        pytest.raises(ConnectionFailed, match=message),
    ):
        client.classify("m", "hi")


def test_the_timeout_covers_a_response_that_trickles() -> None:
    padding = b"X-Padding: %s\r\n" % (b"x" * 1500)  # at 10 ms per byte, the response takes at least 15 s
    answer = _ANSWER.replace(b"Content-Length", padding + b"Content-Length")
    with (
        listening(answering(*_split(answer, 1))) as server,
        Client(server.url, timeout_s=0.3) as client,
        pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"),
    ):
        client.classify("m", "hi")


def test_the_timeout_covers_a_server_that_does_not_read() -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        over.wait(30)
        connection.close()  # a client without a timeout fails otherwise than by its deadline

    with listening(serve) as server:
        with Client(server.url, timeout_s=0.3) as client, pytest.raises(DeadlineExceeded):
            client.classify("m", "x" * 50_000_000)
        over.set()


def test_a_stream_has_its_timeout_per_part_and_keeps_its_connection() -> None:
    events = [b'data: {"text_output": "%d", "index": 0}\n\n' % number for number in range(20)]
    parts, pauses_s = [_chunk(event) for event in events], iter((0.1, 0.0))

    def serve(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            connection.sendall(_CHUNKED)
            pause_s = next(pauses_s)
            for part in parts:
                connection.sendall(part[:20])
                time.sleep(pause_s)
                connection.sendall(part[20:])
            connection.sendall(b"0\r\n\r\n")

    with listening(serve) as server, Client(server.url, timeout_s=1.5) as client:
        for _ in range(2):
            assert [part.text for part in client.generate_stream("m", "hi")] == [str(n) for n in range(20)]
        assert len(server.connections) == 1


def test_leaving_a_stream_closes_its_connection() -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(_CHUNKED + _chunk(b'data: {"text_output": "a", "index": 0}\n\n'))
        connection.recv(1)
        ended.set()

    with listening(serve) as server, Client(server.url, timeout_s=5) as client:
        parts = client.generate_stream("m", "hi")
        assert next(parts).text == "a"
        parts.close()
        assert ended.wait(5)


def test_a_model_that_is_not_there() -> None:
    with listening(answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")) as server:
        transport = HttpTransport(server.url.removeprefix("http://"))
        assert transport.ready("m", 5) is False
        with pytest.raises(NotFound):
            transport.metadata("m", 5)
        transport.close()
