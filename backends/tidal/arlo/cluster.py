"""The other nodes of a partitioned model: the servers that its front calls beside the models of its own server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.model import padded_inputs
from tidal.arlo.remote_server import RemoteCall, RemoteRun, RemoteServer
from tidal.arlo.runner import BatchRunner
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import TidalError
from tidal.repository.cluster_table import CLUSTER_FILE, RemoteNode, read_cluster_table
from tidal.repository.names import runtime_model
from tidal.repository.validated_file import file_stamp
from tidal.requests import Array
from tidal.service import ModelUnavailable, ServiceContext

_MIN_LATENCY_MS = 0.001
# A call that takes longer than this, plus so many times the runtime's latency, shows that its node hangs. Calls of
# other entrances may be before it.
_PATIENCE_S = 1.0
_PATIENCE_LATENCIES = 10


class RemoteNodes:
    """The other nodes of a model, read from its cluster table when that changes.

    A table that cannot be read changes nothing, and is logged.

    Args:
        context: Context of the front.
        lengths: The runtimes' `max_length` in tokens, ascending.
    """

    def __init__(self, context: ServiceContext, lengths: Sequence[int]) -> None:
        self._folder, self._log = context.model_dir, context.log
        self._lengths = lengths
        self._stamp = file_stamp(self._folder / CLUSTER_FILE)
        self._nodes: dict[str, RemoteNode] = {}
        self.servers: Mapping[str, RemoteServer] = {}
        """Servers of the nodes, by name; replaced as a whole."""
        self._used: dict[str, list[int]] = {}
        self.share = 1.0
        """Share of the model's queries that arrive at this node."""
        self.assigned: frozenset[str] = frozenset()
        """Nodes whose instances this node's front uses first, and those of other entrances do not."""
        self.entrances: Mapping[str, str] = {}
        """`host:port` of the gRPC endpoint of each entrance, by name; only known to a node that is none."""
        self._read()
        self.instances = self._reachable()
        """Instances by runtime of each reachable node, in the order of their ranks."""

    def refresh(self) -> bool:
        """Read a changed table, and note which nodes are reachable; return whether an attribute changed."""
        before = self._state()
        stamp = file_stamp(self._folder / CLUSTER_FILE)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        self.instances = self._reachable()
        return before != self._state()

    def close(self) -> None:
        """Close all connections."""
        for server in self.servers.values():
            server.close()

    def _state(self) -> tuple[object, ...]:
        return list(self.instances.items()), self.share, self.assigned, self.entrances

    def _reachable(self) -> dict[str, list[int]]:
        return {name: counts for name, counts in self._used.items() if self.servers[name].reachable}

    def _read(self) -> None:
        try:
            table = read_cluster_table(self._folder)
            table.check(self._lengths)
            servers = {name: self._server(name, node) for name, node in table.nodes.items()}
        except TidalError as error:
            self._log.error(f"the other nodes stay {', '.join(self._nodes) or 'none'}: {error}")
            return
        before, self.servers = self.servers, servers
        self._nodes, self.share, self.entrances = table.nodes, table.share, table.entrances
        self.assigned = frozenset(name for name, node in table.nodes.items() if node.assigned)
        self._used = {
            name: [node.instances.get(length, 0) for length in self._lengths]
            for name, node in sorted(table.nodes.items(), key=lambda each: each[1].rank)
        }
        for name, server in before.items():
            if servers.get(name) is not server:
                server.close()

    def _server(self, name: str, node: RemoteNode) -> RemoteServer:
        """Return the server of a node, the present one if its addresses are the same."""
        present = self.servers.get(name)
        if present is not None and _addresses(present.node) == _addresses(node):
            return present
        return RemoteServer(name, node, self._log)


def _addresses(node: RemoteNode) -> tuple[object, ...]:
    return node.grpc, node.http, node.tls


class ClusterRunner:
    """Runs batches on models of this server or of other nodes; implements `tidal.arlo.runner.AsyncBatchRunner`.

    It calls the front's own version on other nodes.

    Args:
        local: Runs the batches of local lanes.
        nodes: The other nodes.
        front: Name of the front.
        version: Version of the front.
        manifest: Manifest of that version.
    """

    def __init__(
        self, local: BatchRunner, nodes: RemoteNodes, front: str, version: int, manifest: ArloManifest
    ) -> None:
        self._local, self._nodes = local, nodes
        self._version = version
        self._manifest = manifest
        self._models = [runtime_model(front, runtime.max_length) for runtime in manifest.runtimes]
        self._outputs = list(manifest.engine_outputs)
        self._timeouts_s = [
            _PATIENCE_S + _PATIENCE_LATENCIES * manifest.profile.latency_ms(runtime.max_length) / 1e3
            for runtime in manifest.runtimes
        ]
        self.remote_lanes: Mapping[int, str] = {}
        """Node of each remote lane; replaced as a whole when the policy's lanes change."""

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        """Run rows on an instance of the runtime on the lane's node; see `BatchRunner`."""
        server = self._server(lane)
        if server is None:
            return self._local.run(lane, runtime, rows, deadline)
        return server.call(self._call(runtime, rows, deadline))

    def start(
        self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None = None
    ) -> RemoteRun | None:
        """Send rows to the lane's node at once, if it is another one; see `AsyncBatchRunner`."""
        server = self._server(lane)
        if server is None:
            return None
        return server.start(self._call(runtime, rows, deadline))

    def _server(self, lane: int) -> RemoteServer | None:
        """Return the server of a lane's node; None for a lane of this server."""
        node = self.remote_lanes.get(lane)
        if node is None:
            return None
        server = self._nodes.servers.get(node)
        if server is None:
            raise ModelUnavailable(f"node '{node}' was disconnected", died=False)
        return server

    def _call(self, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> RemoteCall:
        return RemoteCall(
            self._models[runtime],
            padded_inputs(self._manifest, runtime, rows),
            self._outputs,
            self._version,
            self._timeouts_s[runtime],
            None if deadline is None else max((deadline - time.monotonic()) * 1e3, _MIN_LATENCY_MS),
        )
