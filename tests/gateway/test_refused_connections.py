"""Refusals before a request reaches its route are answers like all others: with an id, in the log and the metrics."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tests.gateway.messages import post
from tests.gateway.sentences import sentence

pytestmark = pytest.mark.server

_CONNECTIONS = 6


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with low limits, before a server that there is not."""
    limits = ("--header-timeout-s", "0.5", "--max-header-bytes", "2000", "--max-connections", str(_CONNECTIONS))
    options = ("--server", "127.0.0.1:9", "--body-timeout-s", "0.5", "--max-body-bytes", "3000")
    with running_gateway(tmp_path_factory.mktemp("limited"), *options, *limits) as started:
        assert until(lambda: answers(started)), (started.folder / "stderr").read_text()
        yield started


def answers(gateway: RunningGateway) -> bool:
    try:
        return gateway.get("/v2/health/live").status_code == 200
    except Exception:
        return False


def connected(gateway: RunningGateway) -> socket.socket:
    host, _, port = gateway.address.partition(":")
    return socket.create_connection((host, int(port)), 20)


def read_to_end(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(65_536):
        found += part
    return found


def parse(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    return int(first.split()[1]), headers, json.loads(body)


def logged(gateway: RunningGateway, identifier: str) -> list[dict[str, Any]]:
    return [each for each in gateway.log() if each["id"] == identifier]


def counted(gateway: RunningGateway, status: int) -> float:
    found = re.findall(rf'tidal_gateway_requests_total{{[^}}]*status="{status}"}} (\S+)', gateway.metrics())
    return sum(map(float, found))


LINE = b"POST /v1/embeddings?key=hidden HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("content", "status", "code", "path"),
    [
        (LINE + b"a: " + b"x" * 4000 + b"\r\n\r\n", 431, "headers_too_large", "/v1/embeddings"),
        (LINE + b"a: " + b"x" * 4000, 431, "headers_too_large", "/v1/embeddings"),
        (LINE, 408, "timeout", "/v1/embeddings"),
        (b"", 408, "timeout", ""),
        (b"nonsense\r\n\r\n", 400, "invalid_http", ""),
        (LINE + b"content-length: -5\r\n\r\n", 400, "invalid_http", "/v1/embeddings"),
        (LINE + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_http", "/v1/embeddings"),
        (LINE + b"content-length: 50\r\n\r\n{", 408, "timeout", "/v1/embeddings"),
        (LINE + b"content-length: 5000\r\n\r\n{", 413, "too_large", "/v1/embeddings"),
    ],
)
def test_a_refusal_has_an_id_a_line_and_a_count(
    limited: RunningGateway, content: bytes, status: int, code: str, path: str
) -> None:
    before = counted(limited, status)
    with connected(limited) as connection:
        connection.sendall(content)
        found, headers, document = parse(read_to_end(connection))
    assert found == status
    assert document["error"]["code"] == code
    assert headers["content-type"] == "application/json"
    identifier = headers["x-request-id"]
    assert until(lambda: bool(logged(limited, identifier)))
    (line,) = logged(limited, identifier)
    assert (line["status"], line["code"], line["path"]) == (status, code, path)
    assert line["client"] == "127.0.0.1"
    assert until(lambda: counted(limited, status) == before + 1)
    assert "hidden" not in (limited.folder / "access.jsonl").read_text()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/v2/models/m/infer",
        "/v2/nothing",
        "/embed",
        "/rerank",
        "/predict",
    ],
)
def test_a_refusal_has_the_shape_of_the_api_of_its_path(limited: RunningGateway, path: str) -> None:
    line = b"POST %s?key=hidden HTTP/1.1\r\nhost: x\r\n" % path.encode()
    invalid = 422 if path in ("/embed", "/rerank", "/predict") else 400
    for content, status, message in (
        (line + b"a: " + b"x" * 4000, 431, "the headers of the request are too large"),
        (line, 408, "the headers of the request did not arrive in time"),
        (line + b"content-length: -5\r\n\r\n", invalid, "the request is not valid HTTP"),
    ):
        with connected(limited) as connection:
            connection.sendall(content)
            found, headers, document = parse(read_to_end(connection))
        assert (found, "allow" in headers) == (status, False)
        assert message in sentence(path, document)


def test_a_head_that_does_not_arrive_behind_another_request_is_refused_too(limited: RunningGateway) -> None:
    with connected(limited) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n" + LINE)
        found = read_to_end(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"408"]


def test_an_id_that_was_sent_is_kept(limited: RunningGateway) -> None:
    with connected(limited) as connection:
        connection.sendall(LINE + b"x-request-id: mine\r\na: " + b"x" * 4000 + b"\r\n\r\n")
        status, headers, _ = parse(read_to_end(connection))
    assert (status, headers["x-request-id"]) == (431, "mine")


def test_connections_above_the_limit(limited: RunningGateway) -> None:
    before = counted(limited, 503)
    held = [connected(limited) for _ in range(_CONNECTIONS)]
    try:
        with connected(limited) as connection:
            status, headers, document = parse(read_to_end(connection))
        assert (status, document["error"]["code"]) == (503, "too_many_connections")
        assert headers["retry-after"] == "1"
        assert until(lambda: len(logged(limited, headers["x-request-id"])) == 1)
    finally:
        for each in held:
            each.close()
    assert until(lambda: counted(limited, 503) >= before + 1)


def test_bytes_that_begin_no_request_do_not_hold_a_connection(limited: RunningGateway) -> None:
    """Neither blank lines between requests, nor the rest of a body whose request was refused."""
    with connected(limited) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert read_to_end(connection) == b""
    with connected(limited) as connection:
        connection.sendall(LINE + b"content-length: 5000\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")
        connection.sendall(b"x")
        read_to_end(connection)


def test_a_refused_request_waits_for_the_answer_before_it(gateway: RunningGateway) -> None:
    slow = post(json.dumps({"model": "embedder", "input": "sleep 0.5"}).encode()).replace(b"classify", b"embeddings")
    with connected(gateway) as connection:
        connection.sendall(slow + b"\x00\xff noise\r\n\r\n")
        found = read_to_end(connection)
    first, second = found.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200")
    assert b'"embedding"' in first
    assert second.startswith(b"400")
