"""Bytes on one connection: heads and bodies arrive complete, whatever surrounds them."""

from __future__ import annotations

import json
import socket

import pytest

from testing.gateways import RunningGateway
from tests.gateway.messages import DOCUMENT, post

pytestmark = pytest.mark.server


def exchange(gateway: RunningGateway, content: bytes, until: int) -> bytes:
    """Send bytes over one connection, and return what arrives until it has `until` status lines and bodies."""
    host, _, port = gateway.address.partition(":")
    found = b""
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(content)
        while found.count(b"completion_tokens") < until:
            part = connection.recv(65_536)
            if not part:
                break
            found += part
    return found


def test_pipelined_requests_are_answered_in_turn(gateway: RunningGateway) -> None:
    documents = [json.dumps({"model": "intent", "input": "a" * length}).encode() for length in (2, 15, 3)]
    found = exchange(gateway, b"".join(map(post, documents)), 3)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.index(b'"short"') < found.index(b'"long"') < found.rindex(b'"short"')


def test_a_client_that_expects_100_continue_gets_it_before_it_sends_the_body(gateway: RunningGateway) -> None:
    whole = post(DOCUMENT, b"expect: 100-continue")
    host, _, port = gateway.address.partition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(whole[: -len(DOCUMENT)])
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(DOCUMENT)
        answer = b""
        while b"completion_tokens" not in answer:
            answer += connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_client_that_closes_its_side_is_answered_with_the_whole_body(gateway: RunningGateway) -> None:
    found = exchange(gateway, post(DOCUMENT, b"connection: close"), 2)
    head, _, body = found.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["data"][0]["label"] == "short"


@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
def test_answers_without_a_body(gateway: RunningGateway, method: bytes) -> None:
    content = method + b" /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert exchange(gateway, content, 1).startswith(b"HTTP/1.1 200")


def test_paths_that_end_with_a_slash_are_not_redirected(gateway: RunningGateway) -> None:
    response = gateway.post("/v1/embeddings/", {})
    assert (response.status_code, "location" in response.headers) == (404, False)
    assert "did you mean '/v1/embeddings'" in response.text


def test_noise_behind_a_request_is_no_failure_of_the_gateway(gateway: RunningGateway) -> None:
    """The noise closes the connection while the request is answered."""
    stderr = gateway.folder / "stderr"
    before = stderr.read_text()
    slow = json.dumps({"model": "embedder", "input": "sleep 0.3"}).encode()
    content = post(slow).replace(b"/v1/classify", b"/v1/embeddings")
    for _ in range(3):
        exchange(gateway, content + b"\x00\xff noise\r\n\r\n", 1)
    assert gateway.post("/v1/embeddings", {"model": "embedder", "input": "x"}).status_code == 200
    assert "Traceback" not in stderr.read_text()[len(before) :]


def test_a_version_that_there_is_not_is_not_found(gateway: RunningGateway) -> None:
    assert gateway.get("/v2/models/intent/versions/1/ready").status_code == 200
    assert gateway.get("/v2/models/intent/versions/0/ready").status_code == 404
