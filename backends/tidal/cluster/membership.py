"""What `tidal cluster start`, `join` and `up` do: start a head and nodes on this machine."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.cluster import local_cluster, ray_node
from tidal.cluster.connection import LOOPBACK, call_controller, check_installed, check_reachable, connected
from tidal.cluster.records import (
    HEAD,
    ClusterRecord,
    check_absent,
    end_record,
    entrances_file,
    memory_file,
    records,
    write_record,
)
from tidal.controller.decisions import PlanSettings
from tidal.controller.local_node import LocalNode, check_server
from tidal.controller.metrics_page import PageAddress
from tidal.controller.server_finder import ServerFinder
from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.repository.cluster_table import NodeTls, check_node_name
from tidal.server.endpoints import choose_port
from tidal.server.state import ServerState

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node joins a cluster.

    Attributes:
        name: Name of the node.
        host: Address of this machine for the other nodes.
        server: Server that the user named; None: the only running one.
        devices: Devices to count instead of the server's; None: those of the server.
        tls: TLS of the connections to other nodes; None for connections without TLS.
        metrics_port: Port of the agent's metrics, on `host`; 0 for a free one.
        entrance: Whether queries may arrive at the node; if not, it holds instances for other nodes only.
    """

    name: str
    host: str
    server: str | None = None
    devices: int | None = None
    tls: NodeTls | None = None
    metrics_port: int = 0
    entrance: bool = True


def start(
    host: str,
    port: int,
    settings: PlanSettings,
    *,
    metrics_port: int = 0,
    token: Path | None = None,
    secret: bool = True,
    redis: str | None = None,
) -> ClusterRecord:
    """Start a head with the cluster's controller.

    Args:
        host: Address to listen on.
        port: Port that nodes join at; 0 for a free one.
        settings: Settings of the controller.
        metrics_port: Port of the controller's metrics; 0 for a free one.
        token: File with the secret to use, which is never removed; None: a new secret.
        secret: Whether processes need the cluster's secret.
        redis: `host:port` of the Redis that has the head's state, from which a lost head continues (see `check_redis`);
            None: the head has it itself.

    Raises:
        Unavailable: A head runs on this machine already, a port is in use, or Ray does not start.
        InvalidArgument: The host is not an address of this machine, the ports are equal, or one is not permitted.
    """
    check_installed()
    check_absent(HEAD)
    if port and port == metrics_port:
        raise InvalidArgument(f"--metrics-port {port} is given twice: nodes and metrics need one port each")
    if redis is not None:
        check_reachable(redis, "Redis")
    port = choose_port(host, port)
    metrics = _metrics_address(host, metrics_port)
    given = token is not None
    if secret and token is None:
        token = ray_node.new_token()
    address = f"{host}:{port}"
    started = ray_node.start_head(host, port, token, redis)
    record = ClusterRecord(
        name=HEAD,
        address=address,
        host=host,
        token=token,
        keep_token=given,
        ray=started.started,
        folder=started.folder,
        metrics=metrics.text,
        redis=redis,
    )
    with _undone(record):
        ray_node.wait_for_head(started, address)
        with connected(address, host, token) as ray:
            ray_node.start_controller(ray, started, settings, metrics)
    return record


def join(address: str, token: Path | None, options: NodeOptions) -> ClusterRecord:
    """Let this machine's running `tidal serve` join a cluster.

    Args:
        address: `host:port` of the head.
        token: File with the cluster's secret.
        options: Options of the node.

    Raises:
        Unavailable: No server runs, other nodes cannot reach it, the port of the metrics is in use, the head does not
            answer, or the node is no entrance and no other one is.
        NotFound: The server serves no partitioned model.
        InvalidArgument: The name is not valid, or the server requires TLS and no CA is given.
    """
    check_installed()
    try:
        check_node_name(options.name)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if options.name == HEAD:
        raise InvalidArgument("'head' is the name of the head: give the node another one with --name")
    check_absent(options.name)
    state = check_server(options.server).state
    _check_served_to_others(state, options)
    check_reachable(address)
    metrics = _metrics_address(options.host, options.metrics_port)
    started, record = _launch(address, options.host, options.name, token, metrics)
    with _undone(record), connected(address, options.host, token) as ray:
        if not options.entrance:
            _check_entrance(options.name)
        _attach(ray, started, options, metrics)
    return record


def up(
    count: int, entrances: int, repository: Path, settings: PlanSettings, devices: int | None, report: Report
) -> ClusterRecord:
    """Start a head and several nodes with their servers on this machine.

    Args:
        count: Number of nodes.
        entrances: Number of those that queries may arrive at, from the first one on.
        repository: Folder of the model repository, which each node gets a copy of.
        settings: Settings of the controller.
        devices: Devices to count on each node; None: its share of the processor's cores, which it is limited to.
        report: Receiver of progress, one sentence per call.

    Raises:
        TidalError: A server or Ray does not start; what was started is ended.
    """
    check_installed()
    names = local_cluster.local_names(count)
    for name in names:
        check_absent(name)
    shares: list[set[int] | None] = [None] * count if devices else list(local_cluster.shared_cores(count))
    base = Path(tempfile.mkdtemp(prefix="tidal-nodes-"))
    servers: list[local_cluster.NodeServerProcess] = []
    try:
        for name, cores in zip(names, shares, strict=True):
            servers.append(local_cluster.start_server(name, repository, base / name, cores))
        head = start(LOOPBACK, 0, settings)
        report(f"head at {head.address}, metrics http://{head.metrics}/metrics")
        pages = [_metrics_address(LOOPBACK, 0) for _ in servers]
        launched = [
            _launch(head.address, LOOPBACK, server.name, head.token, page, server)
            for server, page in zip(servers, pages, strict=True)
        ]
        with connected(head.address, LOOPBACK, head.token) as ray:
            for at, (server, (started, _), page) in enumerate(zip(servers, launched, pages, strict=True)):
                state = server.wait()
                port, entrance = str(state.http_port), at < entrances
                _attach(ray, started, NodeOptions(server.name, LOOPBACK, port, devices, entrance=entrance), page)
                report(f"{server.name}: http://{state.http}, gRPC {state.grpc}, {server.folder / 'models'}")
            report(f"gateway: tidal gateway --servers-file {entrances_file(names[0])}")
    except BaseException:
        for server in servers:
            with contextlib.suppress(TidalError):
                server.started.end()
        for record in records():
            if record.name in (HEAD, *names):
                end_record(record)
        shutil.rmtree(base, ignore_errors=True)
        raise
    return head


def _metrics_address(host: str, port: int) -> PageAddress:
    """Choose the address of a page of metrics; a restarted actor has the same."""
    return PageAddress(host, choose_port(host, port, "metrics"))


def _launch(
    address: str,
    host: str,
    name: str,
    token: Path | None,
    metrics: PageAddress,
    server: local_cluster.NodeServerProcess | None = None,
) -> tuple[ray_node.RayProcess, ClusterRecord]:
    """Start Ray's processes of a node, and write its record."""
    variables = {} if server is None else {"XDG_RUNTIME_DIR": str(server.runtime)}
    started = ray_node.start_node(address, host, token, variables)
    record = ClusterRecord(
        name=name,
        address=address,
        host=host,
        token=token,
        ray=started.started,
        folder=started.folder,
        serve=None if server is None else server.started,
        files=None if server is None else server.folder,
        metrics=metrics.text,
    )
    write_record(record)
    return started, record


def _attach(ray: Any, started: ray_node.RayProcess, options: NodeOptions, metrics: PageAddress) -> None:
    """Start the agent of a node once its Ray has joined."""
    memory = memory_file(options.name)
    memory.unlink(missing_ok=True)  # a node that joins again does not drain
    node_id = ray_node.wait_for_node(ray, started)
    find, entrance = ServerFinder(options.server), options.entrance
    local = LocalNode(options.name, find, options.host, options.devices, options.tls, entrance=entrance)
    ray_node.start_agent(ray, node_id, local, options.name, memory, entrances_file(options.name), metrics)


def _check_entrance(name: str) -> None:
    """Check that queries may arrive at another node of the cluster.

    Raises:
        Unavailable: They may not, or the controller does not answer.
    """
    others = [each for each in call_controller("status")["nodes"] if each["node"] != name and each.get("entrance")]
    if not any(each["state"] in ("serves", "restarting") and each["drain"] == "no" for each in others):
        raise Unavailable(
            "--no-entrance: the cluster has no entrance, so no query could reach this node: let a node join without "
            "the option first"
        )


@contextmanager
def _undone(record: ClusterRecord) -> Iterator[None]:
    """Write a record, and end its processes if the block fails."""
    write_record(record)
    try:
        yield
    except BaseException:
        end_record(record.model_copy(update={"serve": None, "files": None}))
        raise


def _check_served_to_others(state: ServerState, options: NodeOptions) -> None:
    """Check that other nodes reach a server's gRPC endpoint at the node's address."""
    address = f"{options.host}:{state.grpc.rpartition(':')[2]}"
    try:
        check_reachable(address)
    except Unavailable:
        raise Unavailable(
            f"other nodes cannot reach the server at {address}: start tidal serve with --host {options.host}, or name "
            f"the address that it listens on with --host"
        ) from None
    if state.grpc_tls and options.tls is None:
        raise InvalidArgument("the server's gRPC endpoint uses TLS, so nodes need --ca: add the CA certificates")
