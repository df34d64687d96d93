"""`tidal cluster start`, `join`, `up` and `stop`: the head and the nodes of a cluster on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidal.arlo.scheduling import MIN_GAIN
from tidal.cluster.leaving import stay, stop
from tidal.cluster.membership import NodeOptions, join, start, up
from tidal.cluster.records import HEAD, ClusterRecord, entrances_file, records
from tidal.cluster.redis import check_redis
from tidal.commands.cluster_file import PORT, HeadFile, NodeFile, NodeName, own_name
from tidal.commands.cluster_nodes import CaFile, CertificateFile, KeyFile, node_tls
from tidal.commands.cluster_options import (
    Autoscale,
    Block,
    Devices,
    Entrance,
    MaxInstances,
    MetricsPort,
    MinGain,
    MinInstances,
    Period,
    plan_settings,
    scaling_settings,
    secret_file,
)
from tidal.commands.connecting import NO_SERVER, AsJson, Server
from tidal.commands.output import fail, one_sentence, print_json, progress_note
from tidal.commands.stopping import stop_on_signals
from tidal.errors import NotFound
from tidal.server.signals import Flag

_USAGE = 2


def start_head(
    host: Annotated[str, typer.Option(help="Address of this machine for nodes.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port that nodes join at, 0 for a free one.")] = PORT,
    period: Period = 120.0,
    min_gain: MinGain = MIN_GAIN,
    autoscale: Autoscale = False,
    min_instances: MinInstances = None,
    max_instances: MaxInstances = None,
    min_nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of nodes below which none is released, with --max-nodes.", show_default="1"
        ),
    ] = None,
    max_nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of nodes above which none is requested, with --autoscale.",
            show_default="nodes are not scaled",
        ),
    ] = None,
    metrics_port: MetricsPort = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the secret to use; it is never removed.",
            show_default="a new secret, until tidal cluster stop",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept processes without the cluster's secret.")
    ] = False,
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Redis that has the head's state: a lost head continues when it is started again.",
            show_default="a lost head's nodes have to join again",
        ),
    ] = None,
    block: Block = False,
    config: HeadFile = None,
    as_json: AsJson = False,
) -> None:
    """Start the head of a cluster: Ray, and the controller of all nodes. It returns when they run.

    Processes that join need the cluster's secret, a file that only you can read. `--token-file` uses a secret that you
    distribute, such as the output of `openssl rand -hex 32`. With the default address Ray listens on this machine
    alone; with another one it listens on all interfaces of the machine.

    With `--autoscale` a model uses another device when the 98th percentile of the latency reaches 95 % of its `slo_ms`,
    and one fewer when the percentile stays below 50 % for 60 s. With `--max-nodes` the controller requests a node when
    all devices are used, from Ray's autoscaler if there is one, and drains a node that was not required for three
    periods.

    With `--redis` the nodes of a lost head stay in the cluster if the same command is run again within a minute. Redis
    must have no password, so only these machines may reach it. `tidal cluster stop` removes the state.

    ```
    tidal cluster start --host 10.0.0.1
    tidal cluster start --host 10.0.0.1 --period 60 --metrics-port 8005
    tidal cluster start --autoscale --max-instances 8 --max-nodes 4
    tidal cluster start --host 10.0.0.1 --token-file cluster.token --redis 10.0.0.5:6379
    tidal cluster start --config cluster.yaml
    ```

    Exit codes: **0** it runs, or `--block` ended by a signal, **1** a head runs already, a port is in use, Redis does
    not answer, Ray is not installed, does not start, or ended while `--block` waited, **2** wrong usage.
    """
    settings = plan_settings(
        period, min_gain, scaling_settings(autoscale, min_instances, max_instances, min_nodes, max_nodes)
    )
    if insecure and token_file is not None:
        fail("--insecure and --token-file exclude each other: give one of them", _USAGE)
    token = secret_file(token_file)
    if redis is not None:
        with one_sentence(_USAGE):
            check_redis(redis, port, kept_secret=token is not None or insecure)
    leave = stop_on_signals() if block else None
    if not as_json:
        progress_note("starting the head")
    with one_sentence():
        record = start(host, port, settings, metrics_port=metrics_port, token=token, secret=not insecure, redis=redis)
    _handle_again(leave)
    if as_json:
        print_json(_facts(record))
    else:
        secret = "" if record.token is None else f" --token-file {record.token}"
        typer.echo(f"head       {record.address}\nsecret     {record.token or 'none'}\nlogs       {record.folder}")
        typer.echo(f"metrics    http://{record.metrics}/metrics")
        typer.echo(f"on a node  tidal cluster join {record.address}{secret}")
    if leave is not None:
        with one_sentence():
            stay(record, leave)


def join_cluster(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the head.")],
    name: NodeName = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address of this machine for other nodes.", show_default="127.0.0.1 for a head there"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The cluster's secret.", show_default="that of a head on this machine"),
    ] = None,
    server: Server = None,
    devices: Devices = None,
    entrance: Entrance = True,
    metrics_port: MetricsPort = 0,
    ca: CaFile = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    block: Block = False,
    config: NodeFile = None,
    as_json: AsJson = False,
) -> None:
    """Let this machine's running `tidal serve` join a cluster as a node. It returns when the node's agent runs.

    Other nodes send queries to the server's gRPC port at `--host`: start `tidal serve` with that address, or 0.0.0.0.
    The server keeps serving if the cluster ends. The node keeps the list of the cluster's servers in a file, which
    `tidal gateway --servers-file` follows.

    With `--no-entrance` its partitioned models refuse queries and only run those of other nodes. It then needs no
    instance of the longest runtime; another node of the cluster must be an entrance.

    ```
    tidal cluster join 10.0.0.1:6379 --host 10.0.0.2 --token-file cluster.token
    tidal cluster join 10.0.0.1:6379 --host 10.0.0.3 --token-file cluster.token --no-entrance
    tidal cluster join --config cluster.yaml --name b
    ```

    Exit codes: **0** it joined, or `--block` ended by a signal, **1** the head does not answer or refuses the secret,
    other nodes cannot reach the server, it serves no partitioned model, no node would be an entrance, or Ray ended
    while `--block` waited, **2** wrong usage, **3** no server runs, or several do and none was named.
    """
    head, separator, port = address.rpartition(":")
    if not (separator and port.isdigit()):
        fail(f"'{address}' is not an address; expected HOST:PORT, such as 10.0.0.1:{PORT}", _USAGE)
    with one_sentence(_USAGE):
        tls = node_tls(ca, certificate, key)
    if host is None:
        if head != "127.0.0.1":
            fail("--host is required: the address of this machine for other nodes, such as 10.0.0.2", _USAGE)
        host = head
    if token_file is None:
        token_file = next((record.token for record in records() if record.address == address), None)
    token = secret_file(token_file)
    _check_server(server)
    own = name or own_name()
    options = NodeOptions(own, host, server, devices, tls, metrics_port, entrance)
    leave = stop_on_signals() if block else None
    if not as_json:
        progress_note(f"joining as '{options.name}'")
    with one_sentence():
        record = join(address, token, options)
    _handle_again(leave)
    if as_json:
        print_json(_facts(record))
    else:
        typer.echo(f"{record.name} joined {record.address}: see tidal cluster status")
        typer.echo(f"gateway  tidal gateway --servers-file {entrances_file(record.name)}")
    if leave is not None:
        with one_sentence():
            stay(record, leave)


def up_local(
    repository: Annotated[Path, typer.Argument(help="Model repository; each node gets a copy of hard links.")],
    local: Annotated[int, typer.Option("--local", min=1, max=64, metavar="N", help="Number of nodes on this machine.")],
    period: Period = 120.0,
    min_gain: MinGain = MIN_GAIN,
    autoscale: Autoscale = False,
    min_instances: MinInstances = None,
    max_instances: MaxInstances = None,
    devices: Devices = None,
    entrances: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of nodes that queries may arrive at, from the first one on.",
            show_default="all",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a cluster of several nodes on this machine, to try one out: a head, and N nodes with a server each.

    Each server has its own ports, its own copy of the repository and its own share of the processor's cores; with
    `--devices` it may use all cores and counts as N devices. It returns when all serve; `tidal cluster stop` ends
    everything.

    ```
    tidal cluster up --local 2 model_repository
    tidal cluster up --local 3 model_repository --devices 4 --autoscale
    tidal cluster up --local 3 model_repository --entrances 1
    ```

    Exit codes: **0** all serve, **1** a server or Ray does not start; nothing is left running, **2** wrong usage.
    """
    scaling = scaling_settings(autoscale, min_instances, max_instances, None, None)
    settings = plan_settings(period, min_gain, scaling)
    if entrances is not None and entrances > local:
        fail(f"--entrances {entrances} exceeds the number of nodes, --local {local}", _USAGE)
    report = (lambda _line: None) if as_json else typer.echo
    with one_sentence():
        if not repository.is_dir():
            raise NotFound(f"model repository '{repository}' is not a folder")
        head = up(local, entrances or local, repository, settings, devices, report)
    if as_json:
        print_json(_facts(head))


def stop_cluster(as_json: AsJson = False) -> None:
    """End the head and the nodes that were started on this machine.

    Nodes leave their cluster: their fronts stop dispatching to others. A server that `up` started answers
    its accepted requests and exits; a server that joined keeps running. Nodes on other machines keep running; without
    the head they have no controller.

    Exit codes: **0** done, also if there was nothing to end.
    """
    with one_sentence():
        ended = stop()
    if as_json:
        print_json({"ended": ended})
    else:
        typer.echo(f"ended: {', '.join(ended)}" if ended else "nothing was started on this machine")


def _handle_again(leave: Flag | None) -> None:
    """Handle signals again, for which Ray installs a handler of its own when it is connected to."""
    if leave is not None:
        stop_on_signals(leave)


def _check_server(server: str | None) -> None:
    from tidal.controller.server_finder import ServerFinder

    with one_sentence(NO_SERVER):
        ServerFinder(server)()


def _facts(record: ClusterRecord) -> dict[str, str | None]:
    return {
        "name": record.name,
        "address": record.address,
        "token_file": None if record.token is None else str(record.token),
        "logs": str(record.folder),
        "servers_file": None if record.name == HEAD else str(entrances_file(record.name)),
        "metrics": record.metrics,
    }
