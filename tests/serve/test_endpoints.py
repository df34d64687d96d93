"""Free ports: no two servers that start at the same time choose the same one."""

from __future__ import annotations

import random
import socket

import pytest

from tidal.errors import InvalidArgument, Unavailable
from tidal.server import endpoints
from tidal.server.endpoints import choose_endpoints, choose_port, is_free


def claim_all() -> None:
    """Choose endpoints until no port is free."""
    while True:
        choose_endpoints("127.0.0.1", 0, 0, 0)


def test_a_free_port_is_chosen_once_and_a_server_can_listen_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = random.randrange(20_000, 31_000)
    monkeypatch.setattr(endpoints, "_FREE_PORTS", range(start, start + 40))
    chosen = [choose_endpoints("127.0.0.1", 0, 0, 0) for _ in range(4)]
    ports = [port for each in chosen for port in (each.http, each.grpc, each.metrics)]
    assert len(set(ports)) == 12
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        assert server.getsockname()[1] == ports[0]
        assert not is_free("127.0.0.1", ports[0])
    assert is_free("127.0.0.1", ports[0])
    with pytest.raises(Unavailable, match="no free port found"):
        claim_all()


def test_a_port_in_use_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"^port {port} is in use.*: choose another with --port, or 0"):
            choose_port("127.0.0.1", port)
    assert choose_port("127.0.0.1", port) == port
    assert choose_port("127.0.0.1") != choose_port("127.0.0.1")


def test_a_port_given_twice_is_said_also_of_one_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(InvalidArgument, match=f"^--grpc-port {port} is given twice"):
            choose_endpoints("127.0.0.1", port, port, 0)
