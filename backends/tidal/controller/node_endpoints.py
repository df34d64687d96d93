"""Endpoints of this machine's server as other machines use them."""

from __future__ import annotations

from tidal.controller.server_finder import ControlledServer
from tidal.server.endpoints import listens
from tidal.server.state import ServerState


def gateway_server(state: ServerState, host: str) -> str:
    """Return a server of this machine in the form of `tidal gateway --server`; empty if a gateway cannot use it.

    Args:
        state: State of the server.
        host: Address of this machine for others. The status endpoint is left out if it does not listen there.
    """
    if state.grpc_tls:  # gateways connect without TLS
        return ""
    grpc = f"{host}:{port_of(state.grpc)}"
    if state.status is None or not listens(f"{host}:{port_of(state.status)}"):
        return grpc
    return f"{grpc},status={host}:{port_of(state.status)}"


def node_http(state: ServerState, host: str) -> str:
    """Return the HTTP endpoint of this machine's server for other nodes; empty if they have to use gRPC.

    Args:
        state: State of the server.
        host: Address of this machine for others.
    """
    address = f"{host}:{port_of(state.http)}"
    # A server whose gRPC endpoint has TLS is not to receive queries without.
    return address if not state.grpc_tls and listens(address) else ""


class NodeHttp:
    """The HTTP endpoint of a node's server for other nodes.

    One that has answered is kept as long as the server: a connection that fails for a moment must not make all fronts
    change to gRPC and back.

    Args:
        host: Address of this machine for others.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._found: tuple[tuple[int, int], str] | None = None

    def of(self, server: ControlledServer) -> str:
        """Return the endpoint of a server; empty if others have to use gRPC. See `node_http`."""
        if self._found is None or self._found[0] != server.identity or not self._found[1]:
            self._found = server.identity, node_http(server.state, self._host)
        return self._found[1]


def port_of(address: str) -> str:
    """Return the port of a `host:port`."""
    return address.rpartition(":")[2]
