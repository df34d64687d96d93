"""What a node reports to the controller. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tidal.arlo.scheduling import Assignment
from tidal.controller.counts import ModelCounts
from tidal.errors import InvalidArgument
from tidal.repository.cluster_table import ClusterTable, RemoteNode

ServerState = Literal["serves", "restarting", "away"]


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Published properties of a model.

    Args:
        lengths: The runtimes' `max_length` in tokens, ascending.
        latencies_s: Latency of one query padded to each runtime, in seconds.
        slo_s: Latency objective, in seconds.
    """

    lengths: tuple[int, ...]
    latencies_s: tuple[float, ...]
    slo_s: float

    def by_length(self, counts: Iterable[int]) -> dict[int, int]:
        """Return counts by runtime as counts by max_length in tokens."""
        return dict(zip(self.lengths, counts, strict=True))

    def counts_of(self, instances: Mapping[int, int]) -> tuple[int, ...]:
        """Return instances by max_length in tokens as counts by runtime, 0 where a runtime is left out.

        Raises:
            InvalidArgument: There is no such runtime.
        """
        if unknown := sorted(instances.keys() - set(self.lengths)):
            accepted = ", ".join(map(str, self.lengths))
            raise InvalidArgument(f"there is no runtime with max_length {unknown[0]}; accepted: {accepted}")
        return tuple(instances.get(length, 0) for length in self.lengths)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A partitioned model that serves on a node.

    Attributes:
        model: Name of the model.
        version: Version that serves.
        profile: Published properties of the model.
        devices: Instances of it that the node's devices hold beside its other models.
        instances: Requested instances by runtime.
        usable: Instances by runtime that other nodes may use now: fewer than requested during a change.
        unfinished: Whether a change of the instances was interrupted.
        counts: Traffic since the server started: queries that arrived at this node, engine time of its instances.
        problem: Why its instances cannot be changed; None if they can.
    """

    model: str
    version: int
    profile: ModelProfile
    devices: int
    instances: tuple[int, ...]
    usable: tuple[int, ...]
    unfinished: bool
    counts: ModelCounts
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node and its server.

    Attributes:
        node: Name of the node; empty for the only node of `tidal controller`.
        state: Whether its server serves, is being restarted by `tidal serve`, or is not there.
        reason: Why it does not serve; empty if it does.
        http: `host:port` of its HTTP endpoint; empty if it does not serve.
        grpc: `host:port` of its gRPC endpoint for other nodes; empty if it does not serve.
        node_http: `host:port` of its HTTP endpoint for other nodes; empty if they have to use gRPC.
        entrance: Whether queries may arrive at the node; if not, it holds instances for other nodes only.
        gateway_server: The server in the form of `tidal gateway --server`; empty if a gateway cannot use it.
        identity: Process ids of `tidal serve` and tritonserver; a restart resets all counts.
        cores: Processor cores that the server may use.
        gpus: GPUs that the server may use.
        models: Partitioned models that serve.
        others: Names of the other models that serve.
        tables: Nodes that the fronts of each model dispatch to.
        draining: Whether the node is being drained.
        released: Whether the controller drains it because it is not required.
        pid: Process id of the agent.
        metrics: `host:port` of the agent's metrics; empty if they are not served.
    """

    node: str
    state: ServerState
    reason: str = ""
    http: str = ""
    grpc: str = ""
    node_http: str = ""
    entrance: bool = True
    gateway_server: str = ""
    identity: tuple[int, int] = (0, 0)
    cores: int = 0
    gpus: int = 0
    models: tuple[ModelReport, ...] = ()
    others: tuple[str, ...] = ()
    tables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    draining: bool = False
    released: bool = False
    pid: int = 0
    metrics: str = ""

    def of_model(self, model: str) -> ModelReport | None:
        """Return the report of a model; None if it does not serve on the node."""
        return next((each for each in self.models if each.model == model), None)


def since(before: ModelCounts, now: ModelCounts) -> ModelCounts:
    """Return the traffic between two readings of counts since the server's start; counts never fall.

    Args:
        before: Earlier reading.
        now: Later reading.
    """

    def less(a: float, b: float) -> float:
        return max(0.0, b - a)

    return ModelCounts(
        seconds=less(before.seconds, now.seconds),
        queries=tuple(map(less, before.queries, now.queries)),
        busy_s=tuple(map(less, before.busy_s, now.busy_s)),
        requests=max(0, now.requests - before.requests),
        slow=max(0, now.slow - before.slow),
        critical=max(0, now.critical - before.critical),
        latency_s=less(before.latency_s, now.latency_s),
    )


@dataclass(frozen=True, slots=True)
class ModelEntrances:
    """What fronts of a model learn of the entrances.

    Attributes:
        ranks: Rank of each other node by node; of equally loaded instances, those of the lowest rank are used.
        shares: Share of the queries that arrive at each node; none where few do.
        assigned: Nodes of each entrance, as far as queries arrive there: its own one and those that it uses first.
    """

    ranks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    assigned: Assignment = field(default_factory=dict)


def node_tables(
    reports: dict[str, NodeReport],
    limits: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
    entrances: Mapping[str, ModelEntrances] | None = None,
) -> dict[str, dict[str, ClusterTable]]:
    """Return the other nodes that the fronts of each node dispatch to, by node and model.

    A node is left out where it drains, where its server is not there, and where it serves another version than the
    front. A node whose server is being restarted stays: fronts do not use it until it answers. Fronts of a node that is
    no entrance dispatch nothing, and learn where the entrances are.

    Args:
        reports: Latest report of each node, by name.
        limits: Instances by runtime that nodes are about to have at most, by model and node.
        entrances: Entrances of each model, by its name; None: each node is the only one.
    """
    tables: dict[str, dict[str, ClusterTable]] = {}
    for name, report in reports.items():
        for front in report.models:
            others: dict[str, RemoteNode] = {}
            known = (entrances or {}).get(front.model, ModelEntrances())
            rank, assigned = known.ranks.get(name, {}), known.assigned.get(name, ())
            for other, its in sorted(reports.items()):
                model = its.of_model(front.model)
                if other == name or its.draining or model is None or model.version != front.version:
                    continue
                most = (limits or {}).get(front.model, {}).get(other, model.usable)
                counts = [min(pair) for pair in zip(model.usable, most, strict=True)]
                instances = dict(zip(model.profile.lengths, counts, strict=True))
                others[other] = RemoteNode(
                    grpc=its.grpc,
                    http=its.node_http or None,
                    instances=instances,
                    rank=rank.get(other, 0),
                    assigned=other in assigned,
                    tls=None,
                )
            table = ClusterTable(nodes=others, share=known.shares.get(name, 1.0))
            if not report.entrance:
                table = ClusterTable(
                    nodes={}, entrances={each: reports[each].grpc for each in others if reports[each].entrance}
                )
            tables.setdefault(name, {})[front.model] = table
    return tables


def entrances(reports: dict[str, NodeReport]) -> tuple[str, ...]:
    """Return the servers that gateways use, in the form of `tidal gateway --server`: of entrances that do not drain.

    Args:
        reports: Latest report of each node, by name.
    """
    return tuple(
        its.gateway_server
        for _, its in sorted(reports.items())
        if its.gateway_server and its.entrance and not its.draining
    )


def without_server(known: NodeReport, report: NodeReport) -> NodeReport:
    """Return the report of a node whose server is being restarted: its models are those that it had before."""
    if report.state != "restarting" or known.state == "away":
        return report
    return replace(
        known,
        state=report.state,
        reason=report.reason,
        draining=report.draining,
        released=report.released,
        pid=report.pid,
        metrics=report.metrics,
    )


def why_blocked(model: str, nodes: Mapping[str, NodeReport], silent: Mapping[str, str]) -> str | None:
    """Return why nothing can be decided about a model now; None if nothing prevents it.

    Args:
        model: Name of the model.
        nodes: Last report of each node, by name.
        silent: Nodes whose agents do not answer, with the reason.
    """
    if silent:
        return f"waiting for {', '.join(silent)}: {next(iter(silent.values()))}"
    for name, node in nodes.items():
        if node.state == "restarting":
            return f"waiting for {name}: {node.reason}"
    reports = reports_of(model, nodes)
    if not reports:
        return "no node serves it"
    for name, its in reports.items():
        if its.problem is not None:
            return of_node(name, its.problem)
    if len({(its.version, its.profile) for its in reports.values()}) > 1:
        versions = ", ".join(f"{name} serves {its.version}" for name, its in reports.items())
        return f"the nodes serve different versions: {versions}"
    return None


def reports_of(model: str, nodes: Mapping[str, NodeReport]) -> dict[str, ModelReport]:
    """Return the reports of a model, by the names of the nodes that serve it."""
    return {name: its for name, node in nodes.items() if (its := node.of_model(model)) is not None}


def of_node(name: str, text: str) -> str:
    """Return a text about a node with the node's name; an only node without a name needs none."""
    return f"{name}: {text}" if name else text
