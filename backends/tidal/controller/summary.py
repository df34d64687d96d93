"""The state of a cluster as one JSON object: what `tidal cluster status` prints. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tidal.controller.observed import Load, RecentLoad
from tidal.controller.reports import ModelReport, NodeReport
from tidal.controller.scaling import ScalingState

Drain = Literal["no", "moving", "drained"]
NodeState = Literal["serves", "moving", "drained", "restarting", "away", "silent"]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the controller knows.

    Attributes:
        nodes: Last report of each node, by name.
        silent: Nodes whose agents do not answer, with the reason.
        plans: Last plan of each model.
        waiting: Reason to wait, by model; "" for all models.
        reported_at: Time of the last report of each node, in seconds since 1970.
        outdated: Nodes whose fronts dispatch by an old table of nodes.
        scaling: Last decisions of scaling; None without it.
    """

    nodes: dict[str, NodeReport]
    silent: dict[str, str]
    plans: dict[str, dict[str, Any]]
    waiting: dict[str, str]
    reported_at: dict[str, float]
    outdated: frozenset[str]
    scaling: ScalingState | None = None


def summary(state: ClusterState, load: RecentLoad, pid: int, metrics: str) -> dict[str, Any]:
    """Return the state of a cluster.

    Args:
        state: State known to the controller.
        load: Recent load of the nodes.
        pid: Process id of the controller.
        metrics: `host:port` of its metrics; empty if they are not served.
    """
    nodes, silent, plans = state.nodes, state.silent, state.plans
    rows: list[dict[str, Any]] = [
        {
            "node": name,
            "state": "silent" if name in silent else report.state,
            "reason": silent.get(name, report.reason),
            "drain": drain_state(name, nodes, plans),
            "released": report.released,
            "entrance": report.entrance,
            "grpc": report.grpc,
            "cores": report.cores,
            "gpus": report.gpus,
            "agent": report.pid,
            "metrics": report.metrics,
            "models": [_model(report, its, load.of(name, its)) for its in report.models],
            "other_models": list(report.others),
        }
        for name, report in sorted(nodes.items())
    ]
    rows += [{"node": name, "state": "silent", "reason": silent[name]} for name in sorted(silent.keys() - nodes.keys())]
    controller = {"pid": pid, "metrics": metrics, "waiting": state.waiting}
    return {"controller": controller, "nodes": rows, "plans": plans, "scaling": _scaling(state.scaling)}


def node_state(name: str, state: ClusterState) -> NodeState:
    """Return the state of a node: that of its agent and server, and whether it drains if both answer."""
    if name in state.silent:
        return "silent"
    report = state.nodes[name]
    if report.state != "serves":
        return report.state
    drain = drain_state(name, state.nodes, state.plans)
    return "serves" if drain == "no" else drain


def drain_state(name: str, nodes: dict[str, NodeReport], plans: dict[str, dict[str, Any]]) -> Drain:
    """Return whether a node drains, and whether its instances have moved and no other front dispatches to it."""
    report = nodes[name]
    if not report.draining:
        return "no"
    used = any(name in others for node in nodes.values() for _, others in node.tables)
    planned = all(
        name in plan.get("draining", ()) and plan.get("state") == "done" and sum(its.instances) <= report.entrance
        for its in report.models
        for plan in (plans.get(its.model, {}),)
    )
    return "drained" if planned and not used else "moving"


def newest_plans(kept: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return the newest plan of each model among those that agents have kept.

    Args:
        kept: Plans by model of each agent; errors are ignored.
    """
    plans: dict[str, dict[str, Any]] = {}
    for each in kept:
        for model, plan in each.items() if isinstance(each, dict) else ():
            if model not in plans or plan["at"] > plans[model]["at"]:
                plans[model] = plan
    return plans


def _scaling(state: ScalingState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    nodes = state.nodes
    return {
        "wanted_instances": state.models,
        "wanted_nodes": None if nodes is None else nodes.wanted,
        "reason": "" if nodes is None else nodes.reason,
    }


def _model(report: NodeReport, its: ModelReport, load: Load | None) -> dict[str, Any]:
    lengths = its.profile.lengths
    return {
        "model": its.model,
        "version": its.version,
        "devices": its.devices,
        "instances": {str(n): count for n, count in zip(lengths, its.instances, strict=True)},
        "usable": {str(n): count for n, count in zip(lengths, its.usable, strict=True)},
        "queries": {str(n): round(count) for n, count in zip(lengths, its.counts.queries, strict=True)},
        "queries_per_s": None if load is None else round(load.queries_per_s, 1),
        "busy": None if load is None else round(load.busy, 3),
        "busy_s": {str(n): round(busy, 3) for n, busy in zip(lengths, its.counts.busy_s, strict=True)},
        "dispatches_to": list(dict(report.tables).get(its.model, ())),
        "problem": its.problem,
    }
