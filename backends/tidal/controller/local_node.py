"""The server of this node as the controller sees it: read through its state file, changed by two-phase allocation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

from tidal.catalog.graph import ModelGraph, PartitionedModel
from tidal.controller.counts import ModelCounts
from tidal.controller.devices import HostDevices
from tidal.controller.fronts import ServedFront, served_fronts
from tidal.controller.lock import lock_model
from tidal.controller.node_endpoints import NodeHttp, gateway_server, port_of
from tidal.controller.reports import ModelReport, NodeReport
from tidal.controller.series import Series, counts_of, parse_series
from tidal.controller.server_finder import ControlledServer, ServerFinder
from tidal.errors import NotFound, TidalError, Unavailable
from tidal.repository.allocation import read_allocation
from tidal.repository.cluster_table import ClusterTable, NodeTls, read_cluster_table, write_cluster_table
from tidal.server.allocate import LiveFront, allocate, partitioned_model, wanted_now
from tidal.server.change_lock import exclusive_change
from tidal.server.gauges import read_metrics
from tidal.server.state import running_servers

_ENGINE_TIME = "nv_inference_compute_infer_duration_us"


class LocalNode:
    """Reads and changes the `tidal serve` of this node.

    Args:
        name: Name of the node.
        find: Returns the server, such as `ServerFinder`; raises Unavailable while it is down.
        host: Address at which other nodes reach the server's endpoints.
        devices: Devices to count instead of the server's cores or GPUs; None: those of the server.
        tls: TLS of the connections to other nodes; None for connections without TLS.
        entrance: Whether queries may arrive at the node; if not, its fronts refuse them.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], ControlledServer],
        host: str,
        devices: int | None = None,
        tls: NodeTls | None = None,
        *,
        entrance: bool = True,
    ) -> None:
        self._name, self._find, self._host, self._devices, self._tls = name, find, host, devices, tls
        self._entrance = entrance
        self._locks: dict[str, int] = {}  # descriptors by model
        self._server_devices: tuple[tuple[int, int], HostDevices] | None = None  # of the server with this identity
        self._http = NodeHttp(host)
        self._first: dict[str, int] = {}  # instances that a model had first, where no device of its kind is known

    def read(self) -> NodeReport:
        """Return what the server has and has done."""
        try:
            server = self._find()
            return self._report(server)
        except (TidalError, OSError, ValueError) as error:  # a server that is shutting down may answer anything
            restarting = any(state.restarting for state in running_servers())
            state: Literal["restarting", "away"] = "restarting" if restarting else "away"
            return NodeReport(self._name, state, str(error), entrance=self._entrance)

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        """Change a model's instances without losing a request; see `tidal.server.allocate.allocate`.

        Args:
            model: Name of the model.
            instances: Requested instances by max_length in tokens, for every runtime.
        """
        server = self._find()
        repository = server.state.repository
        front = LiveFront(server.control, server.state.metrics, repository, partitioned_model(repository, model))
        allocate(front, instances, lambda line: self._step(model, line), entrance=self._entrance)

    def write_table(self, model: str, table: ClusterTable) -> None:
        """Write the other nodes that a model's fronts dispatch to; a file that has them is left as it is.

        Args:
            model: Name of the model.
            table: The other nodes, without TLS.
        """
        folder = self._find().state.repository / model
        if self._tls is not None:
            over_tls = {"tls": self._tls, "http": None}
            nodes = {name: node.model_copy(update=over_tls) for name, node in table.nodes.items()}
            table = table.model_copy(update={"nodes": nodes})
        with exclusive_change(folder):
            try:
                present = read_cluster_table(folder)
            except TidalError:  # replaced by a valid one
                present = None
            if table != present:
                write_cluster_table(folder, table)

    def stand_alone(self, model: str) -> None:
        """Let a model's fronts serve without other nodes: they dispatch to none, and accept queries.

        A node that is no entrance starts an instance of the longest runtime if it has none.

        Args:
            model: Name of the model.
        """
        self.write_table(model, ClusterTable(nodes={}))
        if not self._entrance:
            repository = self._find().state.repository
            self._entrance = True
            self.allocate(model, self._requested(repository, partitioned_model(repository, model)))

    def close(self) -> None:
        """Let another process control the models."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()

    def _step(self, model: str, line: str) -> None:
        """Receive a sentence about a step of a change."""

    def _report(self, server: ControlledServer) -> NodeReport:
        state = server.state
        text = read_metrics(state.metrics)
        series, times = parse_series(text), _engine_times(text)
        ready: dict[str, int] = {}  # newest version by model
        for row in server.control.index():
            if row.state == "READY":
                ready[row.name] = max(row.version, ready.get(row.name, 0))
        fronts = list(served_fronts(server, series))
        graph, served = ModelGraph.read(state.repository), {front.model for front in fronts}
        late = {name: n for name, n in sorted(ready.items()) if graph.partitioned(name) and name not in served}
        if (reason := self._blocked(late, series)) is not None:
            return NodeReport(self._name, "restarting", reason, entrance=self._entrance)
        devices = self._devices_of(server)
        counted = devices if self._devices is None else HostDevices(self._devices, self._devices)
        wanted = {front.model: self._wanted(front) for front in fronts}
        models = []
        for front in fronts:
            present = sum(wanted[front.model].values())
            others = [(each, sum(wanted[each.model].values())) for each in fronts if each.model != front.model]
            lengths, slo_s = front.profile.lengths, front.profile.slo_s
            counts = counts_of(series, front.model, front.versions, lengths, slo_s)
            busy_s = tuple(times.get(front.live.model.runtime_models[length], 0.0) for length in lengths)
            held = counted.instances(front, others) or self._first.setdefault(front.model, present)
            if self._controls(front.model):
                models.append(self._model(front, wanted[front.model], held, replace(counts, busy_s=busy_s)))
        runtimes = {name for front in fronts for name in front.live.model.runtime_models.values()}
        return NodeReport(
            node=self._name,
            state="serves",
            http=state.http,
            grpc=f"{self._host}:{port_of(state.grpc)}",
            node_http=self._http.of(server),
            entrance=self._entrance,
            gateway_server=gateway_server(state, self._host),
            identity=server.identity,
            cores=devices.cores,
            gpus=devices.gpus,
            models=tuple(models),
            others=tuple(name for name in sorted(ready) if name not in runtimes and name not in wanted),
            tables=tuple((front.model, _table_nodes(front)) for front in fronts),
        )

    def _controls(self, model: str) -> bool:
        """Return whether a partitioned model is one to report."""
        return True

    def _blocked(self, late: Mapping[str, int], series: Series) -> str | None:
        """Return why nothing can be reported now; None if nothing prevents it.

        Triton publishes metrics some seconds after a start; a decision without such a model would move instances.

        Args:
            late: Newest ready version of each partitioned model that is not among the served ones.
            series: Series of the server's `/metrics` page.
        """
        return f"'{next(iter(late))}' has not published its metrics yet" if late else None

    def _devices_of(self, server: ControlledServer) -> HostDevices:
        """Return the devices of a server; its GPUs are those of its environment and stay."""
        pid = server.state.server_pid
        if self._server_devices is None or self._server_devices[0] != server.identity:
            self._server_devices = server.identity, HostDevices.of_process(pid)
        return replace(self._server_devices[1], cores=len(os.sched_getaffinity(pid)))

    def _wanted(self, front: ServedFront) -> dict[int, int]:
        """Return the requested instances of a model, by max_length in tokens."""
        return self._requested(front.live.repository, front.live.model)

    def _requested(self, repository: Path, model: PartitionedModel) -> dict[int, int]:
        """Return the requested instances of a model; an entrance that was none before needs the longest runtime."""
        counts = wanted_now(repository, model)
        return {**counts, model.lengths[-1]: max(counts[model.lengths[-1]], int(self._entrance))}

    def _lock(self, folder: Path) -> str | None:
        """Lock a model until `close` or the end of this process; return why that is not possible."""
        if folder.name not in self._locks:
            try:
                self._locks[folder.name] = lock_model(folder)
            except Unavailable as error:
                return str(error)
        return None

    def _unfinished(self, folder: Path) -> bool:
        """Return whether a change of a model's instances was interrupted, or its fronts are to accept other queries."""
        allocation = read_allocation(folder)
        if allocation is None:
            return not self._entrance
        return allocation.loaded is not None or allocation.entrance != self._entrance

    def _model(self, front: ServedFront, wanted: Mapping[int, int], devices: int, counts: ModelCounts) -> ModelReport:
        folder = front.live.repository / front.model
        allocation = read_allocation(folder)
        if allocation is None:  # also of a dry run, which assumes others
            usable = self._requested(front.live.repository, front.live.model)
        else:
            usable = allocation.serving()
        lengths = front.profile.lengths
        return ModelReport(
            model=front.model,
            version=front.versions[-1],
            profile=front.profile,
            devices=devices,
            instances=tuple(wanted[length] for length in lengths),
            usable=tuple(usable.get(length, 0) for length in lengths),
            unfinished=self._unfinished(folder),
            counts=counts,
            problem=self._lock(folder),
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
