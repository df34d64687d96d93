"""`tidal cluster connect`, `disconnect` and `nodes`: the other nodes that a partitioned model dispatches to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.catalog.graph import PartitionedModel
from tidal.commands.connecting import DEFAULT_REPOSITORY, AsJson
from tidal.commands.output import fail, one_sentence, print_json, print_table
from tidal.commands.stopping import stop_on_signals
from tidal.errors import InvalidArgument, NotFound, TidalError
from tidal.repository.cluster_table import (
    ClusterTable,
    NodeTls,
    RemoteNode,
    check_address,
    check_node_name,
    read_cluster_table,
    write_cluster_table,
)
from tidal.repository.entries import ModelEntry
from tidal.server.allocate import format_counts, partitioned_model
from tidal.server.change_lock import exclusive_change
from tidal.server.remote_nodes import NodeReader

_USAGE = 2
_NODE = re.compile(r"(?P<name>[^=]*)=(?P<grpc>[^,]*)(,http=(?P<http>[^,]+))?")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a partitioned model.")]
Repository = Annotated[Path, typer.Option(help="Model repository of this node.")]
CaFile = Annotated[
    Path | None, typer.Option(help="CA certificates (PEM) of the nodes' servers; connections then use TLS.")
]
CertificateFile = Annotated[
    Path | None, typer.Option(help="Certificate (PEM) of this node, where servers require one.")
]
KeyFile = Annotated[Path | None, typer.Option(help="Private key (PEM) of --certificate.")]


def connect_nodes(
    model: Model,
    nodes: Annotated[
        list[str],
        typer.Argument(
            metavar="NODE=HOST:PORT[,http=HOST:PORT]...",
            help="Other nodes, each with the gRPC endpoint of its server. Queries go to its HTTP endpoint if that is "
            "given too: sending one takes half of the processor time.",
        ),
    ],
    repository: Repository = DEFAULT_REPOSITORY,
    ca: CaFile = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    watch: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Time between two readings of the nodes; runs until a signal."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Dispatch a partitioned model's queries to other nodes too.

    Each node must serve the same version of the model. The command reads how many instances of each runtime it has, and
    writes them to `MODEL/cluster.json`; a running server uses them within 0.25 s. Run it on each node that receives
    queries. A node that does not answer gets no queries until it answers again; its pending queries are requeued
    elsewhere.

    ```
    tidal cluster connect intents b=10.0.0.2:8001,http=10.0.0.2:8000 c=10.0.0.3:8001
    tidal cluster connect intents b=10.0.0.2:8001 --watch 10    follow b's allocation
    ```

    Exit codes: **0** all are connected, or `--watch` ended by a signal, **1** a node does not answer or does not serve
    the model; the others are connected, **2** wrong usage.
    """
    with one_sentence(_USAGE):
        tls = node_tls(ca, certificate, key)
        readers = [_reader(text, tls) for text in nodes]
        front = partitioned_model(repository, model)
    if watch is None:
        failures = _connect(repository, front, readers)
        _show(repository, model, as_json=as_json)
        if failures:
            fail("; ".join(failures))
        return
    stop = stop_on_signals()
    reported: list[str] = []
    while not stop.is_set():
        failures = _connect(repository, front, readers)
        for failure in failures if failures != reported else ():
            typer.echo(f"error: {failure}", err=True)
        reported = failures
        stop.wait(watch)


def disconnect_nodes(
    model: Model,
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="Names of nodes. Default: all.")
    ] = None,
    repository: Repository = DEFAULT_REPOSITORY,
    as_json: AsJson = False,
) -> None:
    """Stop running a model's queries on other nodes; queries in flight are still answered.

    Exit codes: **0** done, **1** a node is not connected, **2** wrong usage.
    """
    with one_sentence(_USAGE):
        front = partitioned_model(repository, model)
    folder = repository / front.name
    with one_sentence(), exclusive_change(folder):
        present = read_cluster_table(folder).nodes
        for name in nodes or ():
            if name not in present:
                raise NotFound(f"node '{name}' is not connected; connected: {', '.join(sorted(present)) or 'none'}")
        left = {name: node for name, node in present.items() if nodes and name not in nodes}
        write_cluster_table(folder, ClusterTable(nodes=left))
    _show(repository, model, as_json=as_json)


def list_nodes(model: Model, repository: Repository = DEFAULT_REPOSITORY, as_json: AsJson = False) -> None:
    """List the other nodes of a model: address, instances that queries are sent to, and what the node serves now.

    Exit codes: **0** listed, **1** the table is not valid, **2** wrong usage.
    """
    with one_sentence(_USAGE):
        partitioned_model(repository, model)
    _show(repository, model, as_json=as_json)


def _connect(repository: Path, front: PartitionedModel, readers: list[NodeReader]) -> list[str]:
    """Read all nodes and write those that serve the model; returns the failures. A failing node keeps its entry."""
    folder = repository / front.name
    failures: list[str] = []
    found: dict[str, RemoteNode] = {}
    version = ModelEntry(folder).versions()[-1]
    for reader in readers:
        try:
            instances = reader.instances(front.name, version, front.lengths)
        except TidalError as error:
            failures.append(str(error))
            continue
        found[reader.name] = RemoteNode(grpc=reader.address, http=reader.http, instances=instances, tls=reader.tls)
    try:
        with exclusive_change(folder):
            present = read_cluster_table(folder)
            table = ClusterTable(nodes={**present.nodes, **found})
            if table != present:
                write_cluster_table(folder, table)
    except TidalError as error:
        failures.append(str(error))
    return failures


def _show(repository: Path, model: str, *, as_json: bool) -> None:
    folder = repository / model
    with one_sentence():
        nodes = read_cluster_table(folder).nodes
        version = ModelEntry(folder).versions()[-1]
    rows = [_row(model, version, name, node) for name, node in sorted(nodes.items())]
    if as_json:
        print_json(rows)
        return
    columns = ("NODE", "GRPC", "HTTP", "INSTANCES", "STATE")
    cells = [
        (row["node"], row["grpc"], row["http"] or "-", format_counts(row["instances"]), row["state"]) for row in rows
    ]
    print_table(columns, cells, notes="" if rows else f"'{model}' runs on this node alone")


def _row(model: str, version: int, name: str, node: RemoteNode) -> dict[str, Any]:
    try:
        serving = NodeReader(name, node.grpc, node.tls, node.http).instances(
            model, version, tuple(sorted(node.instances))
        )
        state = "serves" if serving == node.instances else f"serves {format_counts(serving)}: connect it again"
    except TidalError as error:
        state = str(error)
    return {"node": name, "grpc": node.grpc, "http": node.http, "instances": dict(node.instances), "state": state}


def _reader(text: str, tls: NodeTls | None) -> NodeReader:
    found = _NODE.fullmatch(text)
    if found is None:
        raise InvalidArgument(
            f"'{text}' is not a node; expected NODE=HOST:PORT or NODE=HOST:PORT,http=HOST:PORT, such as "
            "b=10.0.0.2:8001,http=10.0.0.2:8000"
        )
    if found["http"] and tls is not None:
        raise InvalidArgument(f"'{text}': queries over HTTP have no TLS; leave out http= or --ca")
    try:
        http = check_address(found["http"]) if found["http"] else None
        return NodeReader(check_node_name(found["name"]), check_address(found["grpc"]), tls, http)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def node_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> NodeTls | None:
    """Return the TLS of connections to nodes from a command's options; None without --ca.

    Raises:
        InvalidArgument: An option lacks another one, or does not name a file.
    """
    if (certificate is None) != (key is None):
        raise InvalidArgument("--certificate and --key are given together: add the other")
    if ca is None:
        if certificate is not None:
            raise InvalidArgument("--certificate is for connections with TLS: add --ca")
        return None
    for file in (ca, certificate, key):
        if file is not None and not file.is_file():
            raise InvalidArgument(f"{file} is not a file; expected certificates in PEM form")
    paths = [None if file is None else str(file.resolve()) for file in (certificate, key)]
    return NodeTls(ca=str(ca.resolve()), certificate=paths[0], key=paths[1])
