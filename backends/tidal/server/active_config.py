"""The one place that decides with which config a model is loaded, and whether it is loaded at all.

Starts, publishes, reloads, changes of an allocation and supervision all use it: a config that is given with a load
replaces config.pbtxt completely and stays active, and a plain load after it changes nothing, so two callers that
disagree would undo each other's loads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument
from tidal.repository.allocation import ALLOCATION_FILE, read_allocation
from tidal.repository.config import instance_count, served_versions, with_instances
from tidal.repository.names import runtime_model
from tidal.server.control import ServerControl
from tidal.server.joint_config import joint_config, serving


@dataclass(frozen=True, slots=True)
class ActiveConfig:
    """How a runtime's model is to be loaded.

    Attributes:
        config: Complete config for Triton's load API.
        instances: Number of instances; 0 means that the model is not loaded.
        as_in_file: Whether config.pbtxt alone has the same effect.
    """

    config: dict[str, Any]
    instances: int
    as_in_file: bool


def active_config(graph: ModelGraph, model: str, versions: Collection[int] = ()) -> ActiveConfig | None:
    """How to load a model; None means plainly, by its own config.pbtxt.

    A runtime's model gets the instances that its front's allocation.json requests, and the versions that its front
    calls: a front calls its own version of a runtime and no other. It is always loaded with its complete config: a
    model that was loaded with other counts before would otherwise keep them. An allocation for other runtimes applies
    where it names this one, so that what serves can be restarted whatever is published.

    Args:
        graph: Relations between the models of the repository.
        model: Name of the model.
        versions: Versions of the front that call this model. The versions that the front's version_policy selects are
            served where this model has none of them, or where one config cannot serve them together.

    Raises:
        InvalidArgument: The allocation or a config.pbtxt is not valid.
    """
    owner = graph.owner(model)
    if owner is None:
        return None
    config = graph.config(model)
    configured = instance_count(config)
    allocation = read_allocation(graph.entry(owner.name).folder)
    wanted = allocation.instances if allocation is not None else {}
    instances = next((count for n, count in wanted.items() if runtime_model(owner.name, n) == model), configured)
    complete = _for_versions(graph, owner.name, model, versions)
    if instances not in (0, configured):
        complete = with_instances(complete, instances)
    return ActiveConfig(complete, instances, as_in_file=instances == configured and complete == config)


def _for_versions(graph: ModelGraph, front: str, model: str, called: Collection[int]) -> dict[str, Any]:
    config, published = graph.config(model), graph.versions(model)
    wanted = sorted(wanted_versions(graph, front).intersection(published))
    for versions in (sorted(set(called).intersection(published)), wanted):
        joint = joint_config(graph, front, model, versions) if versions else None
        if joint is not None:
            return joint
    # Triton reports what does not match.
    return serving(config, wanted) if wanted else config


def wanted_versions(graph: ModelGraph, front: str) -> set[int]:
    """Versions of a front that are to serve, by its config.pbtxt and what is published.

    Raises:
        InvalidArgument: The config.pbtxt is not valid.
    """
    return set(served_versions(graph.config(front), graph.versions(front)))


def called_versions(control: ServerControl, graph: ModelGraph, model: str) -> set[int]:
    """Versions of its front that may call a runtime's model now; empty for any other model."""
    owner = graph.owner(model)
    return versions_on_server(control, owner.name) if owner is not None else set()


def versions_on_server(control: ServerControl, model: str) -> set[int]:
    """Versions of a model that serve, load, or still answer requests that they accepted."""
    return {row.version for row in control.index() if row.name == model and row.state != "UNAVAILABLE"}


def check_allocation(graph: ModelGraph, front: str) -> None:
    """Check a front's allocation against the runtimes of its newest version; any other model passes.

    Raises:
        InvalidArgument: The file is not valid or is for other runtimes; the message names the command that sets it.
    """
    model = graph.partitioned(front)
    allocation = read_allocation(graph.entry(front).folder) if model is not None else None
    if model is None or allocation is None:
        return
    try:
        allocation.check(model.lengths)
    except InvalidArgument as error:
        counts = " ".join(f"{length}=COUNT" for length in model.lengths)
        path = graph.entry(front).folder / ALLOCATION_FILE
        raise InvalidArgument(f"{path}: {error}; set it with tidal models allocate {front} {counts}") from None


def load_model(
    control: ServerControl, graph: ModelGraph, model: str, versions: Collection[int] | None = None
) -> ActiveConfig | None:
    """Load or reload a model with its active config and wait until it serves; one without instances is unloaded.

    Args:
        control: Admin API of the server.
        graph: Relations between the models of the repository.
        model: Name of the model.
        versions: See `active_config`; None for the versions that may call the model now.

    Returns:
        The config with which it was loaded; None where that is its config.pbtxt.

    Raises:
        Internal: Triton's reason; the version that served before keeps serving.
        InvalidArgument: Its active config cannot be determined.
    """

    def active_now() -> ActiveConfig | None:
        called = versions if versions is not None else called_versions(control, graph, model)
        return active_config(graph, model, called)

    active = active_now()
    while True:
        if active is not None and not active.instances:
            control.unload(model)
        else:
            control.load(model, active.config if active is not None else None)
        # Whoever writes an allocation, or changes the front, loads by it too. Files are read again, so that whichever
        # load came last used what is valid now.
        graph = ModelGraph.read(graph.repository)
        latest = active_now()
        if latest == active:
            return active
        active = latest


def restart_model(control: ServerControl, graph: ModelGraph, model: str) -> None:
    """Replace a model's processes although its files did not change, which a load alone does not do.

    A version that was published since serves then. The runtimes of a front serve that version before the front does.

    Raises:
        Internal: Triton's reason; the model is then not served.
        InvalidArgument: Its active config cannot be determined; the model is left as it is.
    """
    active_config(graph, model)
    newly_called = _newly_called(control, graph, model)
    for name, versions in newly_called.items():
        load_model(control, graph, name, versions)
    control.unload(model)
    load_model(control, graph, model)
    for name in newly_called:
        load_model(control, graph, name)


def _newly_called(control: ServerControl, graph: ModelGraph, model: str) -> dict[str, set[int]]:
    """The runtimes' models of a front that gets a version which is not on the server, and the versions they need."""
    partitioned = graph.partitioned(model)
    if partitioned is None:
        return {}
    has, wanted = versions_on_server(control, model), wanted_versions(graph, model)
    return {} if wanted <= has else dict.fromkeys(partitioned.runtime_models.values(), has | wanted)
