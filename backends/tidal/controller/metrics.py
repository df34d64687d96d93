"""Prometheus metrics of the controller, `tidal_cluster_*`: of a cluster, or of one server (`tidal controller`)."""

from __future__ import annotations

import time
from collections import Counter as Sums
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidal.controller.decisions import Action, Decision, Trigger
from tidal.controller.summary import ClusterState, NodeState, node_state

_PLANNING_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0)
_CHANGE_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
RESULTS = ("done", "failed")


def named(name: str) -> str:
    """Return the full name of a family."""
    return f"tidal_cluster_{name}"


class ClusterMetrics:
    """The metric families of the controller, in a separate registry.

    Args:
        dry_run: Whether decisions are not carried out: changes are not counted then.
    """

    def __init__(self, *, dry_run: bool = False) -> None:
        self.registry = of = CollectorRegistry()
        self._dry_run, self._state = dry_run, _StateCollector()
        model = ["model"]
        start = Gauge(named("controller_start_timestamp_seconds"), "Time of the controller's last start", registry=of)
        start.set_to_current_time()
        self._lost = Counter(named("lost_nodes"), "Nodes that ended or left without being drained", registry=of)
        self._queries = Counter(
            named("queries"), "Queries that arrived at the nodes, by max_length", [*model, "runtime"], registry=of
        )
        self._plans = Counter(
            named("plans"),
            "Plans made, by what required them and what they do",
            [*model, "trigger", "action"],
            registry=of,
        )
        self._planning = Histogram(
            named("planning_seconds"), "Time to compute a plan", model, buckets=_PLANNING_BUCKETS, registry=of
        )
        self._changes = Counter(named("changes"), "Changes of instances, by result", [*model, "result"], registry=of)
        self._change = Histogram(
            named("change_seconds"), "Time to carry out a change", model, buckets=_CHANGE_BUCKETS, registry=of
        )
        self._moved = Counter(named("moved_instances"), "Instances started or ended by plans", model, registry=of)
        of.register(self._state)

    def read_state(self, state: Callable[[], ClusterState]) -> None:
        """Publish also what the controller knows.

        Args:
            state: Returns it; called at each reading of the metrics, by any thread.
        """
        self._state.state = state

    def add_model(self, model: str) -> None:
        """Create the series of a model: an alert on an increase needs their 0."""
        for trigger in get_args(Trigger):
            for action in get_args(Action):
                self._plans.labels(model, trigger, action)
        for result in RESULTS:
            self._changes.labels(model, result)
        for metric in (self._planning, self._change, self._moved):
            metric.labels(model)

    def gone(self, *, drained: bool) -> None:
        """Count a node that has left the cluster if it was not drained."""
        self._lost.inc(not drained)

    def arrived(self, model: str, lengths: Sequence[int], queries: Sequence[float]) -> None:
        """Count queries that arrived at a node.

        Args:
            model: Name of the model.
            lengths: max_length of each runtime, in tokens.
            queries: Queries by runtime.
        """
        for length, count in zip(lengths, queries, strict=True):
            self._queries.labels(model, str(length)).inc(count)

    @contextmanager
    def planning(self, model: str) -> Iterator[None]:
        """Time a plan, which the block computes."""
        with self._planning.labels(model).time():
            yield

    def planned(self, model: str, decision: Decision) -> None:
        """Count a plan, carried out or not."""
        self._plans.labels(model, decision.trigger, decision.action).inc()

    @contextmanager
    def change(self, model: str, moves: int) -> Iterator[None]:
        """Count and time a change, which the block carries out.

        Args:
            model: Name of the model.
            moves: Instances that start or end.
        """
        begin = time.monotonic()
        try:
            yield
        except Exception:
            self._changes.labels(model, "failed").inc()
            raise
        if self._dry_run:
            return
        self._changes.labels(model, "done").inc()
        self._change.labels(model).observe(time.monotonic() - begin)
        self._moved.labels(model).inc(moves)


class _StateCollector(Collector):
    """Families that follow from what the controller knows now: series of nodes and models that are gone end."""

    def __init__(self) -> None:
        self.state: Callable[[], ClusterState] = lambda: ClusterState({}, {}, {}, {}, {}, frozenset())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families."""
        state = self.state()
        yield from _node_families(state)
        yield from _model_families(state)
        yield from _plan_families(state)
        yield from _scaling_families(state)


def _node_families(state: ClusterState) -> Iterator[GaugeMetricFamily]:
    names = sorted(state.nodes.keys() | state.silent.keys())
    nodes = _family("nodes", "1 for the state that a node is in, else 0", "node", "state")
    reports = _family("report_timestamp_seconds", "Time of the last report of a node's agent", "node")
    outdated = _family("table_outdated", "1 while a node's fronts dispatch by an old table of nodes, else 0", "node")
    for name in names:
        present = node_state(name, state)
        for each in get_args(NodeState):
            nodes.add_metric([name, each], float(each == present))
        if name in state.reported_at:
            reports.add_metric([name], state.reported_at[name])
        if name in state.nodes:
            outdated.add_metric([name], float(name in state.outdated))
    yield from (nodes, reports, outdated)


def _model_families(state: ClusterState) -> Iterator[GaugeMetricFamily]:
    models = _models(state)
    devices: Sums[str] = Sums()
    usable: Sums[tuple[str, int]] = Sums()
    for node in state.nodes.values():
        for its in node.models:
            devices[its.model] += 0 if node.draining else its.devices
            for length, count in zip(its.profile.lengths, its.usable, strict=True):
                usable[its.model, length] += count
    held = _family("devices", "Instances that the devices of nodes that do not drain hold", "model")
    for model, total in sorted(devices.items()):
        held.add_metric([model], total)
    instances = _family("instances", "Instances that queries run on, by max_length", "model", "runtime")
    for (model, length), count in sorted(usable.items()):
        instances.add_metric([model, str(length)], count)
    blocked = _family("planning_blocked", "1 while nothing can be decided about a model, else 0", "model")
    for model in models:
        blocked.add_metric([model], float(model in state.waiting or "" in state.waiting))
    yield from (held, instances, blocked)


def _plan_families(state: ClusterState) -> Iterator[GaugeMetricFamily]:
    at = _family("plan_timestamp_seconds", "Time of the last plan", "model")
    planned = _family("planned_instances", "Instances by the last plan, by max_length", "model", "runtime")
    demand = _family("demand_queries", "Queries in one SLO period by the last plan, by max_length", "model", "runtime")
    observed = _family("observed_latency_seconds", "Mean latency of the queries before the last plan", "model")
    predicted = _family("predicted_latency_seconds", "Predicted mean latency of the planned instances", "model")
    short = _family("instances_short", "Additional instances that the SLO requires by the last plan", "model")
    for model, plan in sorted(state.plans.items()):
        at.add_metric([model], datetime.fromisoformat(plan["at"]).timestamp())
        counts: Sums[str] = Sums()
        for row in plan["after"].values():
            for length, count in row.items():
                counts[length] += count
        for length, count in counts.items():
            planned.add_metric([model, length], count)
        for length, queries in plan["demand"].items():
            demand.add_metric([model, length], queries)
        for family, name in ((observed, "observed_mean_latency_s"), (predicted, "predicted_mean_after_s")):
            if plan.get(name) is not None:
                family.add_metric([model], plan[name])
        short.add_metric([model], plan.get("instances_short", 0))
    yield from (at, planned, demand, observed, predicted, short)


def _scaling_families(state: ClusterState) -> Iterator[GaugeMetricFamily]:
    wanted = _family(
        "wanted_instances", "Instances that the model is to have; more than devices if it lacks nodes", "model"
    )
    nodes = _family("wanted_nodes", "Nodes that all models need, with --max-nodes")
    if state.scaling is not None:
        for model, count in sorted(state.scaling.models.items()):
            wanted.add_metric([model], count)
        if state.scaling.nodes is not None:
            nodes.add_metric([], state.scaling.nodes.wanted)
    yield from (wanted, nodes)


def _models(state: ClusterState) -> list[str]:
    served = {its.model for node in state.nodes.values() for its in node.models}
    return sorted(served | state.plans.keys())


def _family(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(named(name), help, labels=labels)
