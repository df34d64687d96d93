"""The server of this node as the cluster sees it: read through its state file, changed by the two-phase allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from tidal.catalog.graph import ModelGraph
from tidal.cluster.reports import ModelReport, NodeReport
from tidal.controller.counts import ModelCounts
from tidal.controller.devices import HostDevices
from tidal.controller.fronts import ServedFront, served_fronts
from tidal.controller.lock import lock_model
from tidal.controller.series import counts_of, parse_series
from tidal.controller.server_finder import ControlledServer, ServerFinder
from tidal.errors import NotFound, TidalError, Unavailable
from tidal.repository.allocation import read_allocation
from tidal.repository.cluster_table import ClusterTable, NodeTls, read_cluster_table, write_cluster_table
from tidal.server.allocate import LiveFront, allocate, partitioned_model, wanted_now
from tidal.server.change_lock import exclusive_change
from tidal.server.endpoints import listens
from tidal.server.gauges import read_metrics
from tidal.server.state import ServerState, running_servers

_ENGINE_TIME = "nv_inference_compute_infer_duration_us"


class LocalNode:
    """Reads and changes the `tidal serve` of this node.

    Args:
        name: Name of the node.
        server: Server that the user named, in the form that `choose_server` accepts; None: the only running one.
        host: Address at which other nodes reach the server's gRPC endpoint.
        devices: Devices to count instead of the server's cores or GPUs; None: those of the server.
        tls: TLS of the connections to other nodes; None for connections without TLS.
    """

    def __init__(
        self, name: str, server: str | None, host: str, devices: int | None = None, tls: NodeTls | None = None
    ) -> None:
        self._name, self._host, self._devices, self._tls = name, host, devices, tls
        self._find = ServerFinder(server)
        self._locked: set[str] = set()

    def read(self) -> NodeReport:
        """Return what the server has and has done."""
        try:
            server = self._find()
            return self._report(server)
        except (TidalError, OSError, ValueError) as error:  # a server that is shutting down may answer anything
            restarting = any(state.restarting for state in running_servers())
            return NodeReport(self._name, "restarting" if restarting else "away", str(error))

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        """Change a model's instances without losing a request; see `tidal.server.allocate.allocate`.

        Args:
            model: Name of the model.
            instances: Requested instances by max_length in tokens, for every runtime.
        """
        server = self._find()
        repository = server.state.repository
        front = LiveFront(server.control, server.state.metrics, repository, partitioned_model(repository, model))
        allocate(front, instances, lambda _line: None)

    def write_table(self, model: str, table: ClusterTable) -> None:
        """Write the other nodes that a model's fronts dispatch to; a file that has them is left as it is.

        Args:
            model: Name of the model.
            table: The other nodes, without TLS.
        """
        folder = self._find().state.repository / model
        nodes = {name: node.model_copy(update={"tls": self._tls}) for name, node in table.nodes.items()}
        table = table.model_copy(update={"nodes": nodes})
        with exclusive_change(folder):
            try:
                present = read_cluster_table(folder)
            except TidalError:  # replaced by a valid one
                present = None
            if table != present:
                write_cluster_table(folder, table)

    def _report(self, server: ControlledServer) -> NodeReport:
        state = server.state
        text = read_metrics(state.metrics)
        series, times = parse_series(text), _engine_times(text)
        ready = sorted({row.name for row in server.control.index() if row.state == "READY"})
        fronts = list(served_fronts(server, series, ()))
        graph = ModelGraph.read(state.repository)
        late = [name for name in ready if graph.partitioned(name) and name not in {front.model for front in fronts}]
        if late:
            # Triton publishes metrics some seconds after a start; a decision without this model would move instances.
            return NodeReport(self._name, "restarting", f"'{late[0]}' has not published its metrics yet")
        devices = HostDevices.of_process(state.server_pid)
        counted = devices if self._devices is None else HostDevices(self._devices, self._devices)
        wanted = {front.model: wanted_now(state.repository, front.live.model) for front in fronts}
        models = []
        for front in fronts:
            others = [(each, sum(wanted[each.model].values())) for each in fronts if each.model != front.model]
            lengths, slo_s = front.profile.lengths, front.profile.slo_s
            counts = counts_of(series, front.model, front.versions, lengths, slo_s, 0.0)
            busy_s = tuple(times.get(front.live.model.runtime_models[length], 0.0) for length in lengths)
            held = counted.instances(front, others) or sum(wanted[front.model].values())
            models.append(self._model(front, wanted[front.model], held, replace(counts, busy_s=busy_s)))
        runtimes = {name for front in fronts for name in front.live.model.runtime_models.values()}
        return NodeReport(
            node=self._name,
            state="serves",
            grpc=f"{self._host}:{_port(state.grpc)}",
            entrance=entrance_of(state, self._host),
            identity=server.identity,
            cores=devices.cores,
            gpus=devices.gpus,
            models=tuple(models),
            others=tuple(name for name in ready if name not in runtimes and name not in wanted),
            tables=tuple((front.model, _table_nodes(front)) for front in fronts),
        )

    def _model(self, front: ServedFront, wanted: Mapping[int, int], devices: int, counts: ModelCounts) -> ModelReport:
        folder = front.live.repository / front.model
        allocation = read_allocation(folder)
        usable = wanted if allocation is None else allocation.serving()
        problem = None
        if front.model not in self._locked:
            try:
                lock_model(folder)  # held until this process ends
                self._locked.add(front.model)
            except Unavailable as error:
                problem = str(error)
        lengths = front.profile.lengths
        return ModelReport(
            model=front.model,
            version=front.versions[-1],
            profile=front.profile,
            devices=devices,
            instances=tuple(wanted[length] for length in lengths),
            usable=tuple(usable.get(length, 0) for length in lengths),
            unfinished=allocation is not None and allocation.loaded is not None,
            counts=counts,
            problem=problem,
        )


def check_server(server: str | None) -> ControlledServer:
    """Return the `tidal serve` that an agent would attach to.

    Args:
        server: Server that the user named; None: the only running one.

    Raises:
        Unavailable: None runs, or several run and none was named.
        NotFound: It serves no partitioned model.
    """
    found = ServerFinder(server)()
    graph = ModelGraph.read(found.state.repository)
    ready = {row.name for row in found.control.index() if row.state == "READY"}
    if not any(graph.partitioned(name) for name in ready):
        raise NotFound(
            f"the server at {found.state.http} serves no partitioned model; a cluster shares those: build one with "
            f"placement: partitioned"
        )
    return found


def entrance_of(state: ServerState, host: str) -> str:
    """Return a server of this machine in the form of `tidal gateway --server`; empty if a gateway cannot use it.

    Args:
        state: State of the server.
        host: Address of this machine for others. The status endpoint is left out if it does not listen there.
    """
    if state.grpc_tls:  # gateways connect without TLS
        return ""
    grpc = f"{host}:{_port(state.grpc)}"
    if state.status is None or not listens(f"{host}:{_port(state.status)}"):
        return grpc
    return f"{grpc},status={host}:{_port(state.status)}"


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _table_nodes(front: ServedFront) -> tuple[str, ...]:
    try:
        return tuple(sorted(read_cluster_table(front.live.repository / front.model).nodes))
    except TidalError:
        return ()


def _engine_times(text: str) -> dict[str, float]:
    """Return the seconds that each model has computed, from the text of a /metrics page.

    A front's own metrics also count what it ran on other nodes.
    """
    lines = "\n".join(line for line in text.splitlines() if line.startswith(_ENGINE_TIME)) + "\n"
    times: dict[str, float] = {}
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            name = sample.labels.get("model", "")
            times[name] = times.get(name, 0.0) + sample.value / 1e6
    return times
