"""What a node tells other machines about its server."""

from __future__ import annotations

import socket
from pathlib import Path

from tidal.controller.local_node import gateway_server, node_http
from tidal.server.state import ServerState

STATE = ServerState(
    http="127.0.0.1:1", grpc="127.0.0.1:2", metrics="127.0.0.1:3", key=None, pid=1, pid_started=0.0, server_pid=2,
    version="2", repository=Path("models"), log=None,
)  # fmt: skip


def test_gateways_use_the_status_endpoint_where_it_listens_for_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        state = STATE.model_copy(update={"status": f"127.0.0.1:{port}"})
        assert gateway_server(state, "127.0.0.1") == f"127.0.0.1:2,status=127.0.0.1:{port}"
        assert gateway_server(state, "127.0.0.2") == "127.0.0.2:2"
    with socket.create_server(("0.0.0.0", port)):
        assert gateway_server(state, "127.0.0.2") == f"127.0.0.2:2,status=127.0.0.2:{port}"


def test_other_nodes_use_http_where_it_listens_for_them_and_grpc_has_no_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        state = STATE.model_copy(update={"http": f"0.0.0.0:{port}"})
        assert node_http(state, "127.0.0.1") == f"127.0.0.1:{port}"
        assert node_http(state.model_copy(update={"grpc_tls": True}), "127.0.0.1") == ""
        assert node_http(state, "127.0.0.2") == ""


def test_a_server_without_a_status_endpoint_or_with_tls() -> None:
    assert gateway_server(STATE, "10.0.0.2") == "10.0.0.2:2"
    assert gateway_server(STATE.model_copy(update={"grpc_tls": True}), "10.0.0.2") == ""
