"""A client that does not read its answer loses it after `write_timeout_s`, and holds nothing any more."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tests.gateway.conftest import Backend

pytestmark = pytest.mark.server

#: Of the double: 2,000 parts of 100 kB, ten milliseconds apart.
LARGE = {"model": "talker", "messages": [{"role": "user", "content": "forever large"}], "stream": True}
SMALL = {"model": "talker", "messages": [{"role": "user", "content": "hi"}]}


def begun(gateway: RunningGateway, document: object, identifier: str) -> socket.socket:
    """Send a request over a connection that keeps little of what arrives."""
    body = json.dumps(document).encode()
    host, _, port = gateway.address.partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    head += f"x-request-id: {identifier}\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_a_stream_that_is_not_read_is_ended_and_frees_its_slot(backend: Backend, tmp_path: Path) -> None:
    limits = ("--write-timeout-s", "2", "--max-outstanding", "1")
    with running_gateway(tmp_path, "--server", backend.address, *limits) as gateway:
        assert until(gateway.ready), (tmp_path / "stderr").read_text()
        with begun(gateway, LARGE, "unread") as connection:
            assert until(lambda: "received unread" in backend.log())
            assert gateway.post("/v1/chat/completions", SMALL).status_code == 429  # it holds the only slot
            assert until(lambda: any(each["id"] == "unread" for each in gateway.log()))
            (line,) = [each for each in gateway.log() if each["id"] == "unread"]
            assert (line["status"], line["code"]) == (499, "slow_reader")
            assert until(lambda: "cancelled unread" in backend.log())
            assert gateway.post("/v1/chat/completions", SMALL).status_code == 200
            # Its bytes still wait in the buffers of both sides: only an abort ends the connection.
            (worker,), port = gateway.workers(), connection.getsockname()[1]
            assert until(lambda: all(not each.raddr or each.raddr.port != port for each in worker.net_connections()))
        assert "ended unread" not in backend.log()
        assert 'status="499"' in gateway.metrics()
