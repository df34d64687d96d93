"""Instances of a partitioned model on other nodes: the file `<model>/cluster.json` (Arlo §3.4 across hosts).

The file is next to the version folders and to `allocation.json`, which has the instances of this node:

    {"share": 0.5, "nodes": {"b": {"grpc": "10.0.0.2:8001", "http": "10.0.0.2:8000", "rank": 0, "assigned": true,
     "instances": {"64": 1}}}}

On a node that is no entrance the table has no nodes, and `entrances` names where queries may be sent.

A front dispatches over its own instances and these. It calls the version that it serves itself, so a version number
has to have the same content on all nodes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tidal.errors import InvalidArgument
from tidal.repository.allocation import Counts, listed
from tidal.repository.entries import write_atomically
from tidal.repository.validated_file import read_validated

CLUSTER_FILE = "cluster.json"
# A front has a thread for each instance of each node.
MAX_NODES = 1024
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


class NodeTls(BaseModel):
    """TLS of the connection to a node; paths of PEM files on this node."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    ca: str = Field(description="certificates of the authorities that sign the node's certificate")
    certificate: str | None = Field(None, description="certificate of this node, for mutual TLS")
    key: str | None = Field(None, description="private key of `certificate`")


class RemoteNode(BaseModel):
    """Another node that serves the model."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    grpc: str = Field(description="host:port of the gRPC endpoint of the node's server")
    http: str | None = Field(
        None,
        description="host:port of the HTTP endpoint, where queries go if it is given: sending one takes half of the "
        "processor time of gRPC; it has no TLS",
    )
    instances: Counts = Field(min_length=1, description="instances of each runtime, by max_length in tokens")
    rank: int = Field(
        0, ge=0, description="of equally loaded instances, those of the node with the lowest rank are used"
    )
    assigned: bool = Field(
        False, description="whether fronts of this node use its instances first, and those of other entrances do not"
    )
    tls: NodeTls | None = Field(None, description="TLS of the connection; None for a connection without TLS")

    @field_validator("grpc", "http")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value)

    @model_validator(mode="after")
    def _check_tls(self) -> RemoteNode:
        if self.http is not None and self.tls is not None:
            raise ValueError("http is for connections without TLS; leave out http or tls")
        return self


class ClusterTable(BaseModel):
    """Other nodes that serve a partitioned model, by name."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    share: float = Field(1.0, gt=0.0, le=1.0, description="share of the model's queries that arrive at this node")
    nodes: dict[str, RemoteNode] = Field(max_length=MAX_NODES, description="other nodes that serve the model")
    entrances: dict[str, str] = Field(
        {},
        max_length=MAX_NODES,
        description="host:port of the gRPC endpoint of each entrance, by name, for a node that is none",
    )

    @field_validator("nodes")
    @classmethod
    def _check_names(cls, value: dict[str, RemoteNode]) -> dict[str, RemoteNode]:
        for name in value:
            check_node_name(name)
        return value

    @field_validator("entrances")
    @classmethod
    def _check_entrances(cls, value: dict[str, str]) -> dict[str, str]:
        return {check_node_name(name): check_address(address) for name, address in value.items()}

    def check(self, max_lengths: Iterable[int]) -> None:
        """Check the table against a model's runtimes.

        Args:
            max_lengths: Input lengths of the model's runtimes, in tokens.

        Raises:
            InvalidArgument: A node has a runtime that the model does not have.
        """
        known = set(max_lengths)
        for name, node in self.nodes.items():
            if unknown := node.instances.keys() - known:
                raise InvalidArgument(
                    f"nodes.{name}.instances names {listed(unknown)}; the model's runtimes are {listed(known)}"
                )


def check_node_name(name: str) -> str:
    """Return the name of a node.

    Raises:
        ValueError: It is not valid.
    """
    if not _NODE.fullmatch(name):
        raise ValueError(
            f"'{name[:80]}' is not a node name; expected 1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or digit"
        )
    return name


def check_address(address: str) -> str:
    """Return a `host:port`.

    Raises:
        ValueError: It is not valid.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 1 <= int(found[2]) <= 65535 or not _is_host(found[1]):
        raise ValueError(f"'{address[:80]}' is not an address; expected host:port, such as 10.0.0.2:8001")
    return address


def _is_host(text: str) -> bool:
    """Whether a text is an IPv6 address in brackets, or has labels as names and IPv4 addresses have."""
    if not text.startswith("["):
        return all(1 <= len(label) <= 63 for label in text.removesuffix(".").split("."))
    try:
        ipaddress.IPv6Address(text[1:-1])
    except ValueError:
        return False
    return True


def read_cluster_table(model_dir: Path) -> ClusterTable:
    """Read the other nodes of a model; none where there is no file.

    Args:
        model_dir: Folder of the front in the repository.

    Raises:
        InvalidArgument: The file is not valid; the message names its path, the field and what is accepted.
    """
    table = read_validated(model_dir / CLUSTER_FILE, ClusterTable)
    return ClusterTable(nodes={}) if table is None else table


def write_cluster_table(model_dir: Path, table: ClusterTable) -> None:
    """Write or replace the table atomically; remove the file if it names no node."""
    path = model_dir / CLUSTER_FILE
    if table.nodes or table.entrances:
        write_atomically(path, table.model_dump_json(indent=1, exclude_none=True) + "\n")
    else:
        path.unlink(missing_ok=True)
