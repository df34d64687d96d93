"""`tidal cluster status` and `drain`: what the controller of a cluster knows, and moving a node's work away."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidal.cluster.connection import call_controller, connected
from tidal.cluster.records import this_cluster
from tidal.commands.connecting import AsJson
from tidal.commands.output import fail, one_sentence, print_json, print_table
from tidal.server.allocate import format_counts

_NO_CLUSTER = 3
_POLL_S = 0.5


def show_status(as_json: AsJson = False) -> None:
    """Show the nodes of a cluster, entrances, devices, models, instances, load, and the last plan with its reason.

    Run it on a machine of the cluster.

    Exit codes: **0** shown, **1** the controller does not answer, **3** this machine is in no cluster, or its head does
    not answer; servers go on answering.
    """
    with one_sentence(_NO_CLUSTER):
        record = this_cluster()
        with connected(record.address, record.host, record.token), one_sentence():
            state = {"address": record.address, **call_controller("status")}
    if as_json:
        print_json(state)
        return
    rows = [row for node in state["nodes"] for row in _rows(node)]
    model = ("DEVICES", "MODEL", "VERSION", "INSTANCES", "QUERIES/S", "BUSY", "DISPATCHES TO")
    columns = ("NODE", "STATE", "ENTRANCE", *model)
    print_table(columns, rows, title=f"cluster at {record.address}", notes="\n".join(_notes(state)))


def show_models(as_json: AsJson = False) -> None:
    """Show the models of a cluster: the nodes that serve each, and of partitioned ones the instances of all nodes.

    Run it on a machine of the cluster. The commands `tidal models` show and change those of one server.

    Exit codes: **0** shown, **1** the controller does not answer, **3** this machine is in no cluster, or its head does
    not answer.
    """
    with one_sentence(_NO_CLUSTER):
        record = this_cluster()
        with connected(record.address, record.host, record.token), one_sentence():
            models = models_of(call_controller("status"))
    if as_json:
        print_json(models)
        return
    rows = [
        (
            model["model"],
            "partitioned" if model["partitioned"] else "on each node",
            ", ".join(map(str, model["versions"])) or "-",
            ", ".join(model["nodes"]),
            _counts(model["instances"]) if model["partitioned"] else "-",
            "-" if model["queries_per_s"] is None else f"{model['queries_per_s']:g}",
        )
        for model in models
    ]
    print_table(("MODEL", "KIND", "VERSIONS", "NODES", "INSTANCES", "QUERIES/S"), rows)


def models_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a cluster by name.

    Args:
        state: State of the cluster, see `tidal.controller.summary`.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in state["nodes"]:
        for its in node.get("models", ()):
            model = found.setdefault(its["model"], _no_model(its["model"], partitioned=True))
            model["nodes"].append(node["node"])
            model["versions"] = sorted({*model["versions"], its["version"]})
            for length, count in its["instances"].items():
                model["instances"][length] = model["instances"].get(length, 0) + count
            if its["queries_per_s"] is not None:
                model["queries_per_s"] = round((model["queries_per_s"] or 0.0) + its["queries_per_s"], 1)
        for name in node.get("other_models", ()):
            found.setdefault(name, _no_model(name, partitioned=False))["nodes"].append(node["node"])
    return [found[name] for name in sorted(found)]


def _no_model(name: str, *, partitioned: bool) -> dict[str, Any]:
    return {
        "model": name,
        "partitioned": partitioned,
        "versions": [],
        "nodes": [],
        "instances": {},
        "queries_per_s": None,
    }


def drain_node(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Longest time to wait until the node is drained.")
    ] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Move a node's instances to other nodes, and let their fronts stop dispatching to it; no query fails.

    An entrance still answers the queries that arrive at it, with one instance of the longest runtime and those of other
    nodes. The last entrance is not drained. Once it is drained and its clients use another node, end its `tidal serve`.

    ```
    tidal cluster drain b
    tidal cluster drain b --undo
    ```

    Exit codes: **0** it is drained, or used again, **1** there is no such node, it is the last one, or it is not
    drained in time, **3** this machine is in no cluster, or its head does not answer.
    """
    with one_sentence(_NO_CLUSTER):
        record = this_cluster()
        with connected(record.address, record.host, record.token), one_sentence():
            call_controller("drain", node, not undo)
            wanted = "no" if undo else "drained"
            until = time.monotonic() + timeout
            while (found := _node(node)).get("drain") != wanted:
                if time.monotonic() > until:
                    fail(f"node '{node}' is not drained within {timeout:g} s: {_why(node)}")
                time.sleep(_POLL_S)
    if as_json:
        print_json(found)
    elif undo:
        typer.echo(f"{node} is used again")
    else:
        typer.echo(f"{node} is drained: end its tidal serve when its clients use another node")


def _node(name: str) -> dict[str, Any]:
    return next((each for each in call_controller("status")["nodes"] if each["node"] == name), {})


def _why(name: str) -> str:
    state = call_controller("status")
    waiting = "; ".join(state["controller"]["waiting"].values())
    found = next((each for each in state["nodes"] if each["node"] == name), {"reason": "it has left"})
    return waiting or found["reason"] or "its instances are being moved"


def _rows(node: dict[str, Any]) -> list[tuple[str, ...]]:
    name, state = node["node"], node["state"] if node.get("drain", "no") == "no" else node["drain"]
    entrance = "-" if "entrance" not in node else "yes" if node["entrance"] else "no"
    rows: list[tuple[str, ...]] = [
        (
            name,
            state,
            entrance,
            str(model["devices"]),
            model["model"],
            str(model["version"]),
            _counts(model["instances"]),
            "-" if model["queries_per_s"] is None else f"{model['queries_per_s']:g}",
            "-" if model["busy"] is None else f"{model['busy']:.0%}",
            ", ".join(model["dispatches_to"]) or "-",
        )
        for model in node.get("models", ())
    ]
    return rows or [(name, state, entrance, *["-"] * 7)]


def _notes(state: dict[str, Any]) -> list[str]:
    lines = [f"{node['node']}: {node['reason']}" for node in state["nodes"] if node["reason"]]
    if not any(node.get("entrance") and node["state"] in ("serves", "restarting") for node in state["nodes"]):
        lines.append("no node is an entrance, so no query is accepted: let one join without --no-entrance")
    lines += [f"{model + ': ' if model else ''}{why}" for model, why in state["controller"]["waiting"].items()]
    for model, plan in state["plans"].items():
        change = "no change"
        if plan["moves"]:
            placed = ", ".join(f"{name} {_counts(counts)}" for name, counts in plan["after"].items())
            change = f"{placed} ({plan['moves']} instances start or end)"
        lines.append(f"last plan of {model}, {plan['at']}, {plan['state']}: {change}; {plan['reason']}")
        if plan["shortfall"]:
            lines.append(f"{model}: {plan['shortfall']}")
    lines += _scaling(state)
    pages = [("controller", state["controller"]["metrics"])]
    pages += [(node["node"], node.get("metrics", "")) for node in state["nodes"]]
    lines.append("metrics: " + ", ".join(f"{name} {address or 'not served'}" for name, address in pages))
    return lines


def _scaling(state: dict[str, Any]) -> list[str]:
    if state["scaling"] is None:
        return []
    scaling = state["scaling"]
    lines = [f"{model}: {count} instances are wanted" for model, count in scaling["wanted_instances"].items()]
    if scaling["wanted_nodes"] is not None:
        reason = f"; {scaling['reason']}" if scaling["reason"] else ""
        lines.append(f"nodes: {scaling['wanted_nodes']} are wanted{reason}")
    lines += [
        f"{node['node']}: may be removed: it is not required, and is drained"
        for node in state["nodes"]
        if node.get("released") and node["drain"] == "drained"
    ]
    return lines


def _counts(counts: dict[str, int]) -> str:
    return format_counts({int(length): count for length, count in counts.items()})
