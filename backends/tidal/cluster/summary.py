"""The state of a cluster as one JSON object: what `tidal cluster status` prints. Pure."""

from __future__ import annotations

from typing import Any, Literal

from tidal.cluster.observed import Load, RecentLoad
from tidal.cluster.reports import ModelReport, NodeReport

Drain = Literal["no", "moving", "drained"]


def summary(
    nodes: dict[str, NodeReport],
    silent: dict[str, str],
    plans: dict[str, dict[str, Any]],
    waiting: dict[str, str],
    load: RecentLoad,
    pid: int,
) -> dict[str, Any]:
    """Return the state of a cluster.

    Args:
        nodes: Last report of each node, by name.
        silent: Nodes whose agents do not answer, with the reason.
        plans: Last plan of each model.
        waiting: What is waited for, by model; "" for all models.
        load: Recent load of the nodes.
        pid: Process id of the controller.
    """
    rows: list[dict[str, Any]] = [
        {
            "node": name,
            "state": "silent" if name in silent else report.state,
            "reason": silent.get(name, report.reason),
            "drain": drain_state(name, nodes, plans),
            "grpc": report.grpc,
            "cores": report.cores,
            "gpus": report.gpus,
            "agent": report.pid,
            "models": [_model(report, its, load.of(name, its)) for its in report.models],
            "other_models": list(report.others),
        }
        for name, report in sorted(nodes.items())
    ]
    rows += [{"node": name, "state": "silent", "reason": silent[name]} for name in sorted(silent.keys() - nodes.keys())]
    return {"controller": {"pid": pid, "waiting": waiting}, "nodes": rows, "plans": plans}


def drain_state(name: str, nodes: dict[str, NodeReport], plans: dict[str, dict[str, Any]]) -> Drain:
    """Return whether a node drains, and whether its instances have moved and no other front dispatches to it."""
    report = nodes[name]
    if not report.draining:
        return "no"
    used = any(name in others for node in nodes.values() for _, others in node.tables)
    planned = all(
        name in plan.get("draining", ()) and plan.get("state") == "done" and sum(its.instances) <= 1
        for its in report.models
        for plan in (plans.get(its.model, {}),)
    )
    return "drained" if planned and not used else "moving"


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
