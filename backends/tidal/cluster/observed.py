"""Traffic of a model over a period, summed over the nodes that queries arrive at. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tidal.arlo.scheduling import ClusterNode, ClusterPlan, RuntimeProfile, demand_by_runtime, plan_cluster
from tidal.cluster.reports import ModelReport, NodeReport, since
from tidal.cluster.scaling import ScalingSettings
from tidal.controller.counts import ModelCounts
from tidal.controller.decisions import ModelProfile

_LOAD_READINGS = 16

#: What requires a plan: there is none, other devices or nodes, a drain, the last one failed, another number of
#: instances, or the end of a period.
Trigger = Literal["first", "devices", "draining", "repeat", "scaling", "period"]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of the cluster's decisions.

    Attributes:
        period_s: Observation time before each decision about the lengths of queries, in seconds.
        min_gain: Share of the predicted mean latency that a change must save.
        scaling: Bounds of scaling; None: all devices are used.
    """

    period_s: float = 120.0
    min_gain: float = 0.05
    scaling: ScalingSettings | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a model on a node.

    Attributes:
        queries_per_s: Queries that arrive at the node, per second.
        busy: Mean share of the time that its instances compute, from 0 to 1.
    """

    queries_per_s: float
    busy: float


@dataclass(slots=True)
class ObservedModel:
    """What was observed of a model since its last decision.

    Attributes:
        profile: Published properties of the model.
        since: Time of the first reading, in seconds on the caller's clock.
        readings: Last counts of each node with the identity of its server.
        traffic: Traffic of each node.
    """

    profile: ModelProfile
    since: float
    readings: dict[str, tuple[tuple[int, int], ModelCounts]] = field(default_factory=dict)
    traffic: dict[str, ModelCounts] = field(default_factory=dict)

    def observe(self, node: NodeReport, model: ModelReport) -> ModelCounts:
        """Add and return what a node has done since its last reading; its first one is only a reference."""
        known = self.readings.get(node.node)
        self.readings[node.node] = node.identity, model.counts
        if known is None or known[0] != node.identity:
            return ModelCounts.none(len(self.profile.lengths))
        done = since(known[1], model.counts)
        self.traffic[node.node] = self.traffic[node.node] + done if node.node in self.traffic else done
        return done

    def restart(self, now: float) -> None:
        """Begin the next period."""
        self.since, self.traffic = now, {}

    def total(self, now: float) -> ModelCounts:
        """Return the traffic of all entrances in the period."""
        none = ModelCounts.none(len(self.profile.lengths))
        return replace(sum(self.traffic.values(), start=none), seconds=now - self.since)


class RecentLoad:
    """Load of each model on each node over the last readings: metrics are some seconds late, so one is too short."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str], deque[tuple[float, tuple[int, int], ModelCounts]]] = {}

    def observe(self, node: NodeReport, now: float) -> None:
        """Add a report of a node.

        Args:
            node: The report.
            now: Current time on the caller's clock, in seconds.
        """
        for its in node.models:
            readings = self._readings.setdefault((node.node, its.model), deque(maxlen=_LOAD_READINGS))
            if readings and readings[-1][1] != node.identity:
                readings.clear()
            readings.append((now, node.identity, its.counts))

    def of(self, node: str, model: ModelReport) -> Load | None:
        """Return the load of a model on a node; None before the second reading."""
        readings = self._readings.get((node, model.model), deque())
        if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
            return None
        seconds, done = readings[-1][0] - readings[0][0], since(readings[0][2], readings[-1][2])
        busy = sum(done.busy_s) / seconds / max(1, sum(model.instances))
        return Load(sum(done.queries) / seconds, min(1.0, busy))


def plan_trigger(
    last: Mapping[str, Any],
    devices: Mapping[str, int],
    draining: Sequence[str],
    *,
    period_over: bool,
    instances: int | None = None,
) -> Trigger | None:
    """Return what requires a plan now; None if nothing does.

    Args:
        last: Last plan as `described` returns it, with its `state`; empty if there is none.
        devices: Devices of each node.
        draining: Nodes that drain, sorted.
        period_over: Whether the observation time is over.
        instances: Number of instances to use; None: as many as the devices hold. Free devices then require no plan.
    """
    if not last:
        return "first"
    if devices.keys() != last["devices"].keys() or (instances is None and devices != last["devices"]):
        return "devices"
    if any(sum(last["after"][name].values()) > count for name, count in devices.items() if name not in draining):
        return "devices"
    if draining != last.get("draining"):
        return "draining"
    if last.get("state") != "done":
        return "repeat"
    if instances is not None and instances != last.get("instances"):
        return "scaling"
    return "period" if period_over else None


def decide(
    observed: ObservedModel,
    nodes: Mapping[str, NodeReport],
    model: str,
    settings: PlanSettings,
    now: float,
    instances: int | None = None,
    scaling: str = "",
) -> ClusterPlan:
    """Decide about a model's instances on all nodes that serve it.

    Args:
        observed: Traffic since the last decision.
        nodes: Reports of the nodes by name; those without the model are ignored.
        model: Name of the model.
        settings: Settings of the decision.
        now: Current time on the caller's clock, in seconds.
        instances: Number of instances to use (G); None: as many as the devices hold.
        scaling: Rule that changed it, as a clause: an instance of the longest runtime starts, or the least loaded one
            ends. Empty: the lengths of the queries decide.
    """
    profile, total = observed.profile, observed.total(now)
    demand: tuple[float, ...] = ()
    if not scaling and any(total.queries) and total.seconds > 0:
        histogram = dict(zip(profile.lengths, total.queries, strict=True))
        demand = demand_by_runtime(histogram, profile.lengths, observed_s=total.seconds, slo_s=profile.slo_s)
    none = ModelCounts.none(len(profile.lengths))
    given = [
        ClusterNode(
            name=name,
            devices=its.devices,
            instances=its.instances,
            busy_s=observed.traffic.get(name, none).busy_s,
            draining=report.draining,
        )
        for name, report in sorted(nodes.items())
        if (its := report.of_model(model)) is not None
    ]
    runtimes = [
        RuntimeProfile.from_service(latency_s, profile.slo_s, max(settings.period_s, 1.0))
        for latency_s in profile.latencies_s
    ]
    plan = plan_cluster(given, runtimes, demand or (0.0,) * len(runtimes), settings.min_gain, instances)
    return replace(plan, reason=scaling) if scaling else plan


def described(plan: ClusterPlan, observed: ObservedModel, now: float) -> dict[str, Any]:
    """Return a plan as a JSON object for `tidal cluster status` and for a restarted controller."""
    lengths, total = observed.profile.lengths, observed.total(now)

    def by_node(counts: tuple[tuple[int, ...], ...]) -> dict[str, dict[str, int]]:
        return {node.name: _by_length(lengths, row) for node, row in zip(plan.nodes, counts, strict=True)}

    return {
        "reason": plan.reason,
        "before": by_node(plan.before),
        "after": by_node(plan.after),
        "moves": plan.moves,
        "instances": sum(sum(row) for node, row in zip(plan.nodes, plan.after, strict=True) if not node.draining),
        "devices": {node.name: node.devices for node in plan.nodes},
        "draining": [node.name for node in plan.nodes if node.draining],
        "observed_s": round(total.seconds, 3),
        "queries": _by_length(lengths, total.queries),
        "demand": _by_length(lengths, plan.demand),
        "predicted_mean_before_s": plan.mean_before_s,
        "predicted_mean_best_s": plan.mean_best_s,
        "shortfall": plan.shortfall,
        "instances_short": plan.instances_short,
    }


def _by_length(lengths: tuple[int, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return {str(length): value for length, value in zip(lengths, values, strict=False)}
