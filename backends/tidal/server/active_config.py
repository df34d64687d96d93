"""The one place that decides with which config a model is loaded, and whether it is loaded at all.

Starting, publishing, reloading, changing an allocation and supervision all come through here: a config given with a
load replaces config.pbtxt as a whole and stays active, and a plain load after it changes nothing, so two callers that
disagree would undo each other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument
from tidal.repository.allocation import ALLOCATION_FILE, read_allocation
from tidal.repository.config import instance_count, read_config, served_versions, with_instances
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.repository.partitioned import family
from tidal.server.control import ServerControl
from tidal.server.joint_config import joint_config, serving


@dataclass(frozen=True, slots=True)
class ActiveConfig:
    """How a runtime's model is to be loaded."""

    config: dict[str, Any]
    instances: int  # 0: not loaded at all
    as_in_file: bool  # whether config.pbtxt alone says the same


def active_config(repository: Path | None, model: str, versions: Collection[int] = ()) -> ActiveConfig | None:
    """How to load a model; None means plainly, by its own config.pbtxt.

    A runtime's model gets the instances that its front's allocation.json wants, and the versions that its front calls:
    a front calls its own version of a runtime and no other. It is always loaded with its complete config: one that was
    loaded with other counts before would not go back to those of its file. An allocation for other runtimes counts
    where it names this one, so that what serves can be restarted whatever is published.

    Args:
        repository: where the model is, or None when only the server knows.
        model: its name.
        versions: of the front, to be called; those that its version_policy asks for where this model has none of
            them, or where one config cannot do for them.

    Raises:
        InvalidArgument: the allocation or a config.pbtxt cannot be accepted.
    """
    kin = family(repository, model) if repository is not None else None
    if repository is None or kin is None or kin.front == model:
        return None
    config = read_config(repository / model)
    configured = instance_count(config)
    allocation = read_allocation(repository / kin.front)
    wanted = allocation.instances if allocation is not None else {}
    instances = next((count for n, count in wanted.items() if runtime_model(kin.front, n) == model), configured)
    complete = _for_versions(repository, kin.front, model, config, versions)
    if instances not in (0, configured):
        complete = with_instances(complete, instances)
    return ActiveConfig(complete, instances, as_in_file=instances == configured and complete == config)


def _for_versions(
    repository: Path, front: str, model: str, config: dict[str, Any], called: Collection[int]
) -> dict[str, Any]:
    runtime = ModelEntry(repository / model)
    wanted = sorted(wanted_versions(repository, front).intersection(runtime.versions()))
    for versions in (sorted(set(called).intersection(runtime.versions())), wanted):
        joint = joint_config(config, runtime, ModelEntry(repository / front), versions) if versions else None
        if joint is not None:
            return joint
    # Triton says what does not fit.
    return serving(config, wanted) if wanted else config


def wanted_versions(repository: Path, front: str) -> set[int]:
    """Versions of a front that are to serve, by its config.pbtxt and what is published.

    Raises:
        InvalidArgument: the config.pbtxt cannot be accepted.
    """
    return set(served_versions(read_config(repository / front), ModelEntry(repository / front).versions()))


def called_versions(control: ServerControl, repository: Path | None, model: str) -> set[int]:
    """Versions of its front that may call a runtime's model now; empty for any other model."""
    kin = family(repository, model) if repository is not None else None
    return versions_on_server(control, kin.front) if kin is not None and kin.front != model else set()


def versions_on_server(control: ServerControl, model: str) -> set[int]:
    """Versions of a model that serve, load, or still answer what they took."""
    return {row.version for row in control.index() if row.name == model and row.state != "UNAVAILABLE"}


def check_allocation(repository: Path, front: str) -> None:
    """Hold a front's allocation to the runtimes of its newest version; a model that is no front passes.

    Raises:
        InvalidArgument: the file cannot be accepted, or is for other runtimes; says what to do.
    """
    kin = family(repository, front)
    allocation = read_allocation(repository / front) if kin is not None and kin.front == front else None
    if kin is None or allocation is None:
        return
    try:
        allocation.check(kin.lengths)
    except InvalidArgument as error:
        counts = " ".join(f"{length}=COUNT" for length in kin.lengths)
        path = repository / front / ALLOCATION_FILE
        raise InvalidArgument(f"{path}: {error}; set it with tidal models allocate {front} {counts}") from None


def load_model(
    control: ServerControl, repository: Path | None, model: str, versions: Collection[int] | None = None
) -> None:
    """Load or reload a model with its active config and wait until it serves; one without instances is unloaded.

    Args:
        control: the server's admin side.
        repository: where the model is, or None when only the server knows.
        model: its name.
        versions: see `active_config`; None for those that may call it now.

    Raises:
        Internal: Triton's reason; what served before keeps serving.
        InvalidArgument: its active config cannot be told.
    """

    def active_now() -> ActiveConfig | None:
        called = versions if versions is not None else called_versions(control, repository, model)
        return active_config(repository, model, called)

    active = active_now()
    while True:
        if active is not None and not active.instances:
            control.unload(model)
        else:
            control.load(model, active.config if active is not None else None)
        # Who writes an allocation, or changes the front, loads by it too. Whichever load came last, it was by what
        # holds now.
        latest = active_now()
        if latest == active:
            return
        active = latest


def restart_model(control: ServerControl, repository: Path | None, model: str) -> None:
    """Replace a model's processes although nothing of it changed, which a load alone does not do.

    A version that was published since serves then. Of a front, its runtimes serve it before.

    Raises:
        Internal: Triton's reason; the model is then not served.
        InvalidArgument: its active config cannot be told; the model is left as it is.
    """
    active_config(repository, model)
    newly_called = _newly_called(control, repository, model)
    for name, versions in newly_called.items():
        load_model(control, repository, name, versions)
    control.unload(model)
    load_model(control, repository, model)
    for name in newly_called:
        load_model(control, repository, name)


def _newly_called(control: ServerControl, repository: Path | None, model: str) -> dict[str, set[int]]:
    """The runtimes' models of a front that is to get a version which it has not, and the versions that they need."""
    kin = family(repository, model) if repository is not None else None
    if repository is None or kin is None or kin.front != model:
        return {}
    has, wanted = versions_on_server(control, model), wanted_versions(repository, model)
    return {} if wanted <= has else dict.fromkeys(kin.runtime_models.values(), has | wanted)
