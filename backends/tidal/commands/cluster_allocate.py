"""`tidal cluster allocate`: show or set the instances of a partitioned model on all nodes together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tidal.cluster.connection import call_controller, connected
from tidal.cluster.records import this_cluster
from tidal.commands.allocate import Counts, parse_counts
from tidal.commands.connecting import AsJson
from tidal.commands.output import fail, one_sentence, print_json
from tidal.errors import NotFound, did_you_mean
from tidal.server.allocate import format_counts

_USAGE, _NO_CLUSTER = 2, 3
_POLL_S = 0.5


def allocate_on_nodes(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of a partitioned model.")],
    counts: Counts = None,
    auto: Annotated[bool, typer.Option("--auto", help="Let the controller decide about them again.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Longest time to wait until the instances have changed.")
    ] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Show or set the number of instances of each runtime on all nodes together.

    The controller places them with the fewest changes, and no query fails. Until `--auto` it decides only where they
    are: when a node joins, drains or is lost. Each entrance that does not drain keeps an instance of the longest
    runtime, and the devices of the nodes have to hold all. `tidal models allocate` is for one server without a cluster.

    ```
    tidal cluster allocate intents                present counts
    tidal cluster allocate intents 64=4 512=2
    tidal cluster allocate intents --auto
    ```

    Exit codes: **0** shown, or changed, **1** no node serves the model, the counts are not accepted, or the change is
    not completed in time, **2** wrong usage, **3** this machine is in no cluster, or its head does not answer.
    """
    if auto and counts:
        fail("--auto lets the controller decide, and counts are given: leave one out", _USAGE)
    with one_sentence(_NO_CLUSTER):
        record = this_cluster()
        with connected(record.address, record.host, record.token), one_sentence():
            present = _present(model)
            wanted = None if auto else {**present, **parse_counts(counts or (), model, present)}
            if auto or counts:
                call_controller("allocate", model, wanted)
                _wait(model, wanted, timeout)
                present = _present(model)
    if as_json:
        print_json({"model": model, "instances": present, "set": wanted if counts else None})
    elif auto:
        typer.echo(f"{model}: the controller decides, now at {format_counts(present)}")
    else:
        typer.echo(f"{model}: {format_counts(present)}")


def carried_out(plan: Mapping[str, Any], wanted: Mapping[int, int] | None) -> bool:
    """Return whether a plan has what was set, and is done.

    Args:
        plan: Last plan of the model; empty if there is none.
        wanted: Instances by max_length in tokens; None: the controller decides.
    """
    counts = None if wanted is None else {str(length): count for length, count in wanted.items()}
    return plan.get("state") == "done" and plan.get("set") == counts


def instances_of(model: str, state: Mapping[str, Any]) -> dict[int, int]:
    """Return a model's instances on the nodes that do not drain together, by max_length in tokens.

    Args:
        model: Name of the model.
        state: State of the cluster, see `tidal.controller.summary`.

    Raises:
        NotFound: No node serves the model as a partitioned one.
    """
    served = [(node, its) for node in state["nodes"] for its in node.get("models", ())]
    rows = [its["instances"] for node, its in served if its["model"] == model and node["drain"] == "no"]
    if not rows:
        known = sorted({its["model"] for _, its in served})
        raise NotFound(f"no node serves the partitioned model '{model}': {did_you_mean(model, known)}")
    return {int(length): sum(row.get(length, 0) for row in rows) for length in rows[0]}


def _present(model: str) -> dict[int, int]:
    return instances_of(model, call_controller("status"))


def _wait(model: str, wanted: Mapping[int, int] | None, timeout: float) -> None:
    until = time.monotonic() + timeout
    while not carried_out((state := call_controller("status"))["plans"].get(model, {}), wanted):
        if time.monotonic() > until:
            why = "; ".join(state["controller"]["waiting"].values()) or "they are being changed"
            fail(f"the instances of '{model}' have not changed within {timeout:g} s: {why}")
        time.sleep(_POLL_S)
