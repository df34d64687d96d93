"""The one place that decides with which config a model is loaded, and whether it is loaded at all.

Starting, publishing, reloading, changing an allocation and supervision all come through here: a config given with a
load replaces config.pbtxt as a whole and stays active, and a plain load after it changes nothing, so two callers that
disagree would undo each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.allocation import ALLOCATION_FILE, read_allocation
from tidal.errors import InvalidArgument
from tidal.family import family, runtime_model
from tidal.model_config import instance_count, read_config, with_instances
from tidal.server.control import ServerControl


@dataclass(frozen=True, slots=True)
class ActiveConfig:
    """How a runtime's model is to be loaded."""

    config: dict[str, Any]
    instances: int  # 0: not loaded at all
    as_in_file: bool  # whether config.pbtxt alone says the same


def active_config(repository: Path | None, model: str) -> ActiveConfig | None:
    """How to load a model; None means plainly, by its own config.pbtxt.

    A runtime's model gets the instances that its front's allocation.json wants, and its front's version_policy, so
    that a front that goes back to an earlier version has that version's engines. It is always loaded with its complete
    config: one that was loaded with other counts before would not go back to those of its file. An allocation for
    other runtimes counts where it names this one, so that what serves can be restarted whatever is published.

    Args:
        repository: where the model is, or None when only the server knows.
        model: its name.

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
    complete = with_instances(config, instances) if instances not in (0, configured) else dict(config)
    policy = read_config(repository / kin.front).get("version_policy")
    if policy is not None:
        complete["version_policy"] = policy
    return ActiveConfig(complete, instances, as_in_file=instances == configured and complete == config)


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


def load_model(control: ServerControl, repository: Path | None, model: str) -> None:
    """Load or reload a model with its active config and wait until it serves; one without instances is unloaded.

    Raises:
        Internal: Triton's reason; what served before keeps serving.
        InvalidArgument: its active config cannot be told.
    """
    active = active_config(repository, model)
    while True:
        if active is not None and not active.instances:
            control.unload(model)
        else:
            control.load(model, active.config if active is not None else None)
        # Who writes an allocation loads by it too. Whichever load came last, it was by the file as it is now.
        latest = active_config(repository, model)
        if latest == active:
            return
        active = latest


def restart_model(control: ServerControl, repository: Path | None, model: str) -> None:
    """Replace a model's processes although nothing of it changed, which a load alone does not do.

    Raises:
        Internal: Triton's reason; the model is then not served.
        InvalidArgument: its active config cannot be told; the model is left as it is.
    """
    active_config(repository, model)
    control.unload(model)
    load_model(control, repository, model)
