"""Changing which models and versions a server serves, and reporting the outcome.

Each operation walks one snapshot of the relations between models: what a model requires is loaded before it, and what
was built for it alone is unloaded after it, unless another model that serves requires it.

A partitioned model's front calls its own version of each runtime. So while it changes from one version to another, the
runtimes serve both:

1. every runtime is loaded with the versions that the front serves and those that it is to get;
2. the front is loaded: its new version serves, the one before answers the requests that it accepted and leaves;
3. every runtime is loaded with the versions that the front serves, and runtimes that none of these calls are unloaded.

A failure before the new version serves leaves the one before with everything that it calls; what was loaded for the
new one is unloaded. After a kill at any point, what is called keeps serving, and the next load completes the change.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from tidal.catalog.graph import ModelGraph
from tidal.errors import Internal, NotFound, TidalError
from tidal.repository.allocation import read_allocation, write_allocation
from tidal.server.active_config import (
    active_config,
    check_allocation,
    load_model,
    versions_on_server,
    wanted_versions,
)
from tidal.server.change_lock import exclusive_change
from tidal.server.control import ServerControl
from tidal.server.reasons import sentence

# A request that is not answered after this long has been given up by its client (`answer_timeout_s`, 25 s by default).
_UNLOAD_S = 60.0


def serving_versions(control: ServerControl, model: str) -> list[int]:
    """Versions of a model that serve, ascending."""
    return sorted(row.version for row in control.index() if row.name == model and row.state == "READY")


def load(control: ServerControl, repository: Path | None, model: str) -> str:
    """Load a model, or reload it when its files changed, and wait until it serves; requests meanwhile are answered.

    Models that it requires are loaded before it, each once. Models that were built for it alone and that it no longer
    requires are unloaded after it.

    Args:
        control: Admin API of the server.
        repository: Folder of the model repository; None where only the server has it.
        model: Name of the model.

    Returns:
        What is served now and what was served before, one line per model, the named model first.

    Raises:
        Internal: A model does not load; Triton's reason, and what keeps serving.
        InvalidArgument: An allocation is for other runtimes; what serves is not changed.
        Unavailable: Another process is changing the instances of its runtimes.
    """
    graph = ModelGraph.read(repository)
    order = graph.load_order([model])
    # Runtimes load with their fronts, and an ensemble of a runtime after it; a front requires nothing else.
    fronts = [each for each in order if graph.partitioned(each)]
    with_fronts = {runtime for each in fronts for runtime in graph.requires(each)}
    kept = {required for each in order for required in graph.requires(each)}
    lines = [
        line
        for each in (*fronts, *(each for each in order if each not in fronts))
        if each != model and each not in with_fronts
        for line in _load_with_owned(control, graph, each, kept)
    ]
    first, *rest = _load_with_owned(control, graph, model, kept)
    return "\n  ".join([first, *lines, *rest])


def reload(control: ServerControl, repository: Path | None, model: str) -> str:
    """As `load`, for a model that the server serves.

    Raises:
        NotFound: The server does not serve it.
        Internal: It does not load; Triton's reason, and what keeps serving.
    """
    if not serving_versions(control, model):
        raise NotFound(f"model '{model}' is not served: load it with tidal models load {model}")
    return load(control, repository, model)


def unload(control: ServerControl, repository: Path | None, model: str) -> str:
    """Take a model out of service, and after it what was built for it alone and no other model that serves requires.

    Raises:
        NotFound: The server does not serve it.
        Unavailable: Another process is changing the instances of its runtimes.
    """
    if not serving_versions(control, model):
        raise NotFound(f"model '{model}' is not served")
    _unload(control, ModelGraph.read(repository), model)
    return f"{model}: unloaded; requests in flight are still answered"


def _load_with_owned(control: ServerControl, graph: ModelGraph, model: str, kept: Collection[str]) -> list[str]:
    """Load a model and its runtimes, then unload what it owned and no longer requires, but for what is `kept`.

    Returns:
        What is served now and what was served before, one line per model.
    """
    partitioned = graph.partitioned(model)
    runtimes = tuple(partitioned.runtime_models.values()) if partitioned is not None else ()
    with _exclusive(control, graph, model):
        check_allocation(graph, model)
        before = {name: serving_versions(control, name) for name in (model, *runtimes)}
        try:
            _load_runtimes(control, graph, model, runtimes)
            _load(control, graph, model)
        except TidalError:
            with suppress(TidalError):  # report the first failure
                _restore_runtimes(control, graph, runtimes, serving_versions(control, model))
            raise
        if runtimes:
            _wait_until_unloaded(control, model)
        serving = serving_versions(control, model)
        for name in runtimes:
            _load(control, graph, name, serving)
        required = {name for version in (None, *serving) for name in graph.requires(model, version)}
        former = _owned(graph, model, before[model]).difference(required, kept)
        unloaded = _unload_unrequired(control, graph, model, former)
    reports = [_report(control, graph, name, before[name]) for name in (model, *runtimes)]
    return [*reports, *(f"{name}: unloaded" for name in unloaded)]


def _load_runtimes(control: ServerControl, graph: ModelGraph, front: str, runtimes: Collection[str]) -> None:
    """Load runtimes with the versions that their front serves and those that it is to get, where they have them.

    A runtime without instances is not loaded. Afterwards a change of instances that was killed is complete.
    """
    if not runtimes:
        return
    versions = versions_on_server(control, front) | wanted_versions(graph, front)
    given = [name for name in runtimes if _gets_instances(graph, name)]
    for name in given:
        _load(control, graph, name, versions)
    for name in given:
        if versions.intersection(graph.versions(name)).difference(serving_versions(control, name)):
            # The supervisor has restarted it meanwhile, for the front as it was.
            _load(control, graph, name, versions)
    folder = graph.entry(front).folder
    allocation = read_allocation(folder)
    if allocation is not None and allocation.loaded is not None:
        write_allocation(folder, allocation.completed())


def _restore_runtimes(
    control: ServerControl, graph: ModelGraph, runtimes: Collection[str], serving: Collection[int]
) -> None:
    """Load runtimes with the versions that their front serves; leave them unchanged where it serves none."""
    for name in runtimes if serving else ():
        if not set(serving).intersection(graph.versions(name)):
            control.unload(name)
        elif _gets_instances(graph, name):
            load_model(control, graph, name, serving)


def _gets_instances(graph: ModelGraph, runtime: str) -> bool:
    active = active_config(graph, runtime)
    return active is None or active.instances > 0


def _load(control: ServerControl, graph: ModelGraph, model: str, versions: Collection[int] | None = None) -> None:
    before = serving_versions(control, model)
    try:
        active = load_model(control, graph, model, versions)
    except TidalError as error:
        kept = f"; {_versions(before)} {_s('keep', before)} serving" if before else ""
        raise type(error)(f"model '{model}' does not load: {sentence(str(error))}{kept}") from None
    if (active is None or active.instances) and not serving_versions(control, model):
        raise Internal(f"model '{model}' was loaded but does not serve")


def _unload(control: ServerControl, graph: ModelGraph, model: str) -> None:
    """Unload a model, and after it what it owns."""
    with _exclusive(control, graph, model):
        owned = _owned(graph, model, serving_versions(control, model))
        control.unload(model)
        _unload_unrequired(control, graph, model, owned)


def _unload_unrequired(control: ServerControl, graph: ModelGraph, owner: str, models: Iterable[str]) -> list[str]:
    """Unload models that no other model that serves requires, once their owner's unloading versions have ended."""
    served = {(row.name, row.version) for row in control.index() if row.state == "READY"}
    others = {(name, version) for name, version in served if name != owner}
    required = {each for name, version in others for each in (*graph.requires(name), *graph.requires(name, version))}
    unneeded = sorted({name for name, _ in served}.intersection(models) - required)
    if unneeded:
        _wait_until_unloaded(control, owner)
    for name in unneeded:
        _unload(control, graph, name)
    return unneeded


def _owned(graph: ModelGraph, model: str, versions: Iterable[int]) -> set[str]:
    """What was built for a model alone, by its newest version or any of these."""
    return {name for version in (None, *versions) for name in graph.owned_by(model, version)}


def _exclusive(control: ServerControl, graph: ModelGraph, model: str) -> AbstractContextManager[None]:
    """Be the only process that changes instances of a front, or of what was one when its runtimes were loaded."""
    if graph.partitioned(model) is not None or any(
        serving_versions(control, each) for each in graph.runtimes_of(model)
    ):
        return exclusive_change(graph.entry(model).folder)
    return nullcontext()


def _wait_until_unloaded(control: ServerControl, model: str) -> None:
    """Wait until versions of a model that are unloading have answered what they accepted, for at most `_UNLOAD_S`."""
    end = time.monotonic() + _UNLOAD_S
    while time.monotonic() < end:
        if not any(row.name == model and row.state == "UNLOADING" for row in control.index()):
            return
        time.sleep(0.1)


def _report(control: ServerControl, graph: ModelGraph, model: str, before: list[int]) -> str:
    after = serving_versions(control, model)
    if not after:
        return f"{model}: not loaded, because its allocation has 0 instances"
    if before == after:
        return f"{model}: {_versions(after)} {_s('serve', after)}{_newer(graph, model, after)}"
    return f"{model}: {_versions(after)} {_s('serve', after)} now" + (f", {_versions(before)} before" if before else "")


def _newer(graph: ModelGraph, model: str, serving: list[int]) -> str:
    published = list(graph.versions(model))
    if graph.repository is None or published[-1:] <= serving[-1:]:
        return ", as before"
    why = "its front calls it" if graph.front_of(model) is not None else "its version_policy selects it"
    return f", because {why}; version {published[-1]} is also published"


def _versions(versions: list[int]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


def _s(verb: str, versions: list[int]) -> str:
    return verb if len(versions) > 1 else f"{verb}s"
