"""What a node tells other machines about its server."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tidal.controller.local_node import LocalNode
from tidal.controller.node_endpoints import NodeHttp, gateway_server, node_http
from tidal.controller.server_finder import ControlledServer
from tidal.repository.cluster_table import ClusterTable, NodeTls, RemoteNode, read_cluster_table
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


def test_an_http_endpoint_that_has_answered_is_kept_as_long_as_its_server() -> None:
    def server(number: int) -> ControlledServer:
        return cast(ControlledServer, SimpleNamespace(state=state, identity=(number, 0)))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        state = STATE.model_copy(update={"http": f"127.0.0.1:{listening.getsockname()[1]}"})
        endpoint = NodeHttp("127.0.0.1")
        assert endpoint.of(server(1)) == state.http
    assert endpoint.of(server(1)) == state.http
    assert endpoint.of(server(2)) == ""
    with socket.create_server(("127.0.0.1", int(state.http.rpartition(":")[2]))):
        assert endpoint.of(server(2)) == state.http


def test_nodes_that_are_reached_over_tls_are_not_called_over_http(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    server = cast(ControlledServer, SimpleNamespace(state=STATE.model_copy(update={"repository": tmp_path})))
    table = ClusterTable(nodes={"b": RemoteNode(grpc="h:1", http="h:2", instances={16: 1})})
    LocalNode("a", lambda: server, "h").write_table("m", table)
    assert read_cluster_table(tmp_path / "m") == table
    tls = NodeTls(ca="/ca.pem")
    LocalNode("a", lambda: server, "h", tls=tls).write_table("m", table)
    assert read_cluster_table(tmp_path / "m").nodes == {"b": RemoteNode(grpc="h:1", tls=tls, instances={16: 1})}


def test_a_server_without_a_status_endpoint_or_with_tls() -> None:
    assert gateway_server(STATE, "10.0.0.2") == "10.0.0.2:2"
    assert gateway_server(STATE.model_copy(update={"grpc_tls": True}), "10.0.0.2") == ""
