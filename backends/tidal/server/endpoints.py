"""Choosing the addresses of a server, and checking that they are free before it starts."""

from __future__ import annotations

import dataclasses
import errno
import random
import socket
from dataclasses import dataclass

import psutil

from tidal.errors import InvalidArgument, Unavailable

# Below the range from which the kernel assigns ports to outgoing connections, so that none of those occupies a port
# that was free a moment ago.
_FREE_PORTS = range(20_000, 32_000)
_claims: list[socket.socket] = []
_EVERY_NETWORK = "0.0.0.0"
_CONNECT_S = 0.5


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of one server.

    Attributes:
        host: IPv4 address of tritonserver.
        http: Port of its HTTP endpoint.
        grpc: Port of its gRPC endpoint.
        metrics: Port of its Prometheus endpoint.
        status: Port of `tidal serve`'s own status endpoint; 0 without one.
        status_host: IPv4 address of the status endpoint.
    """

    host: str
    http: int
    grpc: int
    metrics: int
    status: int = 0
    status_host: str = ""

    def address(self, port: int) -> str:
        """`host:port` for a client on this machine."""
        return _from_here(self.host, port)

    @property
    def status_address(self) -> str:
        """`host:port` of the status endpoint for a client on this machine."""
        return _from_here(self.status_host, self.status)


def listens(address: str) -> bool:
    """Return whether something accepts connections at a `host:port` of this machine."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True


def choose_endpoints(host: str, http: int, grpc: int, metrics: int) -> Endpoints:
    """Check that a server can listen on the ports; a port 0 becomes a free one.

    Args:
        host: IPv4 address or host name to listen on.
        http: Port of the HTTP endpoint.
        grpc: Port of the gRPC endpoint.
        metrics: Port of the Prometheus endpoint.

    Raises:
        Unavailable: A port is in use; the message names the port and, where known, the process that uses it.
        InvalidArgument: The host is not an address of this machine, two ports are equal, or one is not permitted.
    """
    host = _ipv4(host)
    given = (("http", http), ("grpc", grpc), ("metrics", metrics))
    for place, (name, port) in enumerate(given):
        if port and port in (before for _, before in given[:place]):
            raise InvalidArgument(f"--{name}-port {port} is given twice: HTTP, gRPC and metrics need one port each")
    chosen: dict[str, int] = {}
    for name, port in given:
        if port:
            _check(host, name, port)
        chosen[name] = port or _free_port(host, {http, grpc, metrics, *chosen.values()})
    return Endpoints(host, chosen["http"], chosen["grpc"], chosen["metrics"])


def choose_port(host: str, port: int = 0, name: str = "") -> int:
    """Check that a server can listen on a port; 0 becomes a free one.

    Args:
        host: IPv4 address or host name to listen on.
        port: The port.
        name: Endpoint of the option `--<name>-port`; empty for that of `--port`.

    Raises:
        Unavailable: The port is in use; the message names the process that uses it, where known.
        InvalidArgument: The host is not an address of this machine, or the port is not permitted.
    """
    host = _ipv4(host)
    if port:
        _check(host, name, port)
    return port or _free_port(host, set(), name)


def with_status(endpoints: Endpoints, host: str | None, port: int) -> Endpoints:
    """The same endpoints with a status endpoint; a port 0 becomes a free one.

    Args:
        endpoints: Addresses of tritonserver.
        host: IPv4 address or host name of the status endpoint; None for tritonserver's.
        port: Port of the status endpoint.

    Raises:
        Unavailable: The port is in use.
        InvalidArgument: The host is not an address of this machine, or the port is one of tritonserver's.
    """
    host = endpoints.host if host is None else _ipv4(host, "--status-host")
    others = {endpoints.http, endpoints.grpc, endpoints.metrics}
    if port in others:
        raise InvalidArgument(f"--status-port {port} is given twice: it needs a port other than HTTP, gRPC and metrics")
    if port:
        _check(host, "status", port)
    return dataclasses.replace(endpoints, status_host=host, status=port or _free_port(host, others))


def holder_of(port: int) -> str | None:
    """`name (process id)` of the process that listens on a port; None where this user cannot see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return None
    for connection in connections:
        listening = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
        if listening and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
            except psutil.Error:
                return f"process {connection.pid}"
    return None


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    try:
        _bind(host, port)
    except OSError:
        return False
    return True


def _from_here(host: str, port: int) -> str:
    return f"{'127.0.0.1' if host == _EVERY_NETWORK else host}:{port}"


def _ipv4(host: str, option: str = "--host") -> str:
    """The IPv4 address of a host: Triton's HTTP and gRPC frontends write other addresses differently."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        raise InvalidArgument(f"{option} '{host}' is neither an IPv4 address nor a name that has one") from None


def _bind(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: closing connections of an earlier server do not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _check(host: str, name: str, port: int) -> None:
    """Check a port; `name` is that of its endpoint, empty for the only one."""
    option = f"--{name}-port" if name else "--port"
    try:
        _bind(host, port)
    except PermissionError:
        raise InvalidArgument(f"{option} {port} may not be used by this user: choose one above 1023") from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise InvalidArgument(f"--host {host} {option} {port}: {error.strerror}") from None
        holder = holder_of(port)
        raise Unavailable(
            f"{f'{name} port' if name else 'port'} {port} is in use{f' by {holder}' if holder else ''}: "
            f"choose another with {option}, or 0 for a free one"
        ) from None


def _free_port(host: str, taken: set[int], name: str = "http") -> int:
    for port in random.sample(_FREE_PORTS, min(200, len(_FREE_PORTS))):
        if port not in taken and _claim(host, port):
            return port
    _check(host, name, _FREE_PORTS[0])
    raise Unavailable(f"no free port found in {_FREE_PORTS.start}-{_FREE_PORTS.stop - 1}")


def _claim(host: str, port: int) -> bool:
    """Bind a port until this process ends, if no other process has: seconds pass until a server listens on its ports.

    A server that reuses addresses, as all do, can still listen on the port.
    """
    claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        claim.bind((host, port))
    except OSError:
        claim.close()
        return False
    # Only now: with it, the bind would succeed beside another process's claim.
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _claims.append(claim)
    return True
