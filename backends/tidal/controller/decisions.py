"""Decisions about a model's instances on all nodes, from its observed traffic. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tidal.arlo.scheduling import (
    MIN_GAIN,
    ClusterNode,
    ClusterPlan,
    NodeCounts,
    RuntimeProfile,
    demand_by_runtime,
    plan_cluster,
)
from tidal.controller.counts import ModelCounts
from tidal.controller.observed import ObservedModel
from tidal.controller.reports import ModelProfile, ModelReport, NodeReport, reports_of
from tidal.controller.scaling import ScalingSettings
from tidal.errors import InvalidArgument

#: What requires a plan: there is none, an operator has set the instances or does no longer, other devices, nodes or
#: entrances, a drain, the last one failed, another number of instances, or the end of a period.
Trigger = Literal["first", "set", "devices", "draining", "repeat", "scaling", "period"]

#: What a plan does to the instances of a model: nothing, exchange or move them, start more, or end some.
Action = Literal["keep", "allocate", "add", "release"]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of the decisions, the same for all models.

    Attributes:
        period_s: Observation time before each decision about the lengths of queries, in seconds.
        min_gain: Share of the predicted mean latency that a change must save, from 0 to less than 1.
        scaling: Bounds of scaling; None: all devices are used.
    """

    period_s: float = 120.0
    min_gain: float = MIN_GAIN
    scaling: ScalingSettings | None = None

    @property
    def only_node(self) -> bool:
        """Whether there is one node and never another."""
        return self.scaling is not None and self.scaling.only_node


def plan_settings(period_s: float, min_gain: float, scaling: ScalingSettings | None) -> PlanSettings:
    """Return the settings that the options of a command stand for.

    Raises:
        InvalidArgument: A value is out of range; the message names the option.
    """
    if not 1 <= period_s <= 86_400:
        raise InvalidArgument(f"--period must be between 1 and 86,400 seconds, got {period_s:g}")
    if not 0 <= min_gain < 1:
        raise InvalidArgument(f"--min-gain must be at least 0 and less than 1, got {min_gain:g}")
    return PlanSettings(period_s, min_gain, scaling)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a model, with what it is based on.

    Attributes:
        profile: Published properties of the model.
        plan: Instances by node to change to, and the reason.
        trigger: Reason for which the plan was required.
        observed: Traffic of all entrances that the plan is based on.
        counts: Instances by runtime that an operator has set; None: they are decided.
    """

    profile: ModelProfile
    plan: ClusterPlan
    trigger: Trigger
    observed: ModelCounts
    counts: tuple[int, ...] | None = None

    @property
    def action(self) -> Action:
        """What the plan does to the instances."""
        before, after = (sum(map(sum, counts)) for counts in (self.plan.before, self.plan.after))
        if before == after:
            return "allocate" if self.plan.moves else "keep"
        return "add" if before < after else "release"

    @property
    def before(self) -> dict[int, int]:
        """Present instances of all nodes, by max_length in tokens."""
        return self.by_length(self.plan.before)

    @property
    def after(self) -> dict[int, int]:
        """Instances of all nodes to change to, by max_length in tokens."""
        return self.by_length(self.plan.after)

    @property
    def mean_after_s(self) -> float | None:
        """Predicted mean latency with the instances to change to, in seconds; None if not predicted."""
        return self.plan.mean_before_s if self.before == self.after else self.plan.mean_best_s

    def by_length(self, counts: NodeCounts) -> dict[int, int]:
        """Return instances by node and runtime as those of all nodes, by max_length in tokens."""
        return self.profile.by_length(map(sum, zip(*counts, strict=True)))


def check_may_drain(name: str, nodes: Mapping[str, NodeReport]) -> None:
    """Check that a node may be drained.

    Args:
        name: Name of the node.
        nodes: Last report of each node, by name.

    Raises:
        InvalidArgument: It is the last node, or the last entrance, that does not drain.
    """
    left = [each for other, each in nodes.items() if other != name and not each.draining]
    if not left:
        raise InvalidArgument(f"node '{name}' is the last one that does not drain: join another node first")
    if not any(each.entrance and each.state != "away" for each in left):
        raise InvalidArgument(
            f"node '{name}' is the last entrance that does not drain, and other nodes accept no queries: join one "
            f"without --no-entrance first"
        )


def usable_devices(
    model: str, nodes: Mapping[str, NodeReport], settings: PlanSettings, instances: int | None
) -> dict[str, int]:
    """Return the number of instances of a model that each node may have.

    It is what its devices hold. The only node may have more, where its present or wanted instances are more.

    Args:
        model: Name of the model.
        nodes: Reports of the nodes by name; those without the model are ignored.
        settings: Settings of the decisions.
        instances: Number of instances to use; None: as many as the devices hold.
    """
    reports = reports_of(model, nodes)
    if not settings.only_node:
        return {name: its.devices for name, its in reports.items()}
    return {name: max(its.devices, sum(its.instances), instances or 0) for name, its in reports.items()}


def as_present(last: Mapping[str, Any], reports: Mapping[str, ModelReport]) -> dict[str, Any]:
    """Return the last plan as if it were the present instances: the only node keeps what others changed by hand.

    Args:
        last: Last plan as `described` returns it; empty if there is none.
        reports: Reports of the model by node.
    """
    if not last:
        return {}
    after = {name: _by_length(its.profile.lengths, its.instances) for name, its in reports.items()}
    return {**last, "after": after, "instances": sum(sum(its.instances) for its in reports.values())}


def plan_trigger(
    last: Mapping[str, Any],
    devices: Mapping[str, int],
    draining: Sequence[str],
    entrances: Sequence[str] = (),
    *,
    period_over: bool,
    instances: int | None = None,
    counts: Sequence[int] | None = None,
) -> Trigger | None:
    """Return what requires a plan now; None if nothing does.

    Args:
        last: Last plan as `described` returns it, with its `state`; empty if there is none.
        devices: Devices of each node.
        draining: Nodes that drain, sorted.
        entrances: Nodes that queries may arrive at, sorted.
        period_over: Whether the observation time is over.
        instances: Number of instances to use; None: as many as the devices hold. Free devices then require no plan.
        counts: Instances by runtime that an operator has set; None: they are decided.
    """
    if not last:
        return "first"
    if (None if counts is None else list(counts)) != (None if last.get("set") is None else [*last["set"].values()]):
        return "set"
    if devices.keys() != last["devices"].keys() or (instances is None and devices != last["devices"]):
        return "devices"
    if any(sum(last["after"][name].values()) > count for name, count in devices.items() if name not in draining):
        return "devices"
    if list(entrances) != last.get("entrances", list(entrances)):
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
    instances: int | None = None,
    scaling: str = "",
    counts: Sequence[int] | None = None,
) -> ClusterPlan:
    """Decide about a model's instances on all nodes that serve it.

    Args:
        observed: Traffic since the last decision.
        nodes: Reports of the nodes by name; those without the model are ignored.
        model: Name of the model.
        settings: Settings of the decisions.
        instances: Number of instances to use (G); None: as many as the devices hold.
        scaling: Rule that changed it, as a clause: instances of the longest runtime start, or the least loaded ones
            end. Empty: the lengths of the queries decide.
        counts: Instances by runtime that an operator has set; None: they are decided.
    """
    profile, total = observed.profile, observed.total()
    demand: tuple[float, ...] = ()
    if not scaling and any(total.queries) and total.seconds > 0:
        histogram = dict(zip(profile.lengths, total.queries, strict=True))
        demand = demand_by_runtime(histogram, profile.lengths, observed_s=total.seconds, slo_s=profile.slo_s)
    devices = usable_devices(model, nodes, settings, instances)
    given = [
        ClusterNode(
            name=name,
            devices=devices[name],
            instances=its.instances,
            busy_s=observed.busy_s(name),
            entrance=nodes[name].entrance,
            draining=nodes[name].draining,
        )
        for name, its in sorted(reports_of(model, nodes).items())
    ]
    runtimes = [
        RuntimeProfile.from_service(latency_s, profile.slo_s, max(settings.period_s, 1.0))
        for latency_s in profile.latencies_s
    ]
    plan = plan_cluster(given, runtimes, demand or (0.0,) * len(runtimes), settings.min_gain, instances, counts)
    return replace(plan, reason=scaling) if scaling else plan


def described(decision: Decision) -> dict[str, Any]:
    """Return a decision as a JSON object for `tidal cluster status` and for a restarted controller."""
    plan, lengths, total = decision.plan, decision.profile.lengths, decision.observed

    def by_node(counts: NodeCounts) -> dict[str, dict[str, int]]:
        return {node.name: _by_length(lengths, row) for node, row in zip(plan.nodes, counts, strict=True)}

    return {
        "trigger": decision.trigger,
        "reason": plan.reason,
        "set": None if decision.counts is None else _by_length(lengths, decision.counts),
        "before": by_node(plan.before),
        "after": by_node(plan.after),
        "moves": plan.moves,
        "instances": sum(sum(row) for node, row in zip(plan.nodes, plan.after, strict=True) if not node.draining),
        "devices": {node.name: node.devices for node in plan.nodes},
        "draining": [node.name for node in plan.nodes if node.draining],
        "entrances": [node.name for node in plan.nodes if node.entrance],
        "observed_s": round(total.seconds, 3),
        "queries": _by_length(lengths, total.queries),
        "demand": _by_length(lengths, plan.demand),
        "observed_mean_latency_s": total.mean_latency_s,
        "predicted_mean_before_s": plan.mean_before_s,
        "predicted_mean_best_s": plan.mean_best_s,
        "predicted_mean_after_s": decision.mean_after_s,
        "shortfall": plan.shortfall,
        "instances_short": plan.instances_short,
    }


def _by_length(lengths: Iterable[int], values: Iterable[Any]) -> dict[str, Any]:
    return {str(length): value for length, value in zip(lengths, values, strict=False)}
