"""Changing which models and versions a server serves, and saying what came of it.

A partitioned model's front calls its own version of each runtime. So while it changes from one version to another, the
runtimes serve both:

1. every runtime is loaded with the versions that the front has and those that it is to get;
2. the front is loaded: its new version serves, the one before answers what it took and leaves;
3. every runtime is loaded with the versions that the front serves, and runtimes that none of these has are unloaded.

What fails before the new version serves leaves the one before with all that it calls; what was loaded for the new one
is taken back. Killed at any point, what is called goes on serving, and the next load completes the change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import Internal, NotFound, TidalError
from tidal.repository.allocation import make_allocation, read_allocation, write_allocation
from tidal.repository.cascades import Cascade, cascade, cascades
from tidal.repository.ensembles import Ensemble, ensemble
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.repository.partitioned import family, front_of
from tidal.server.active_config import (
    active_config,
    check_allocation,
    load_model,
    versions_on_server,
    wanted_versions,
)
from tidal.server.allocate import changing
from tidal.server.control import ServerControl
from tidal.server.reasons import sentence

# A request that is not answered after this long has been given up by its client (`answer_timeout_s`, 25 s by default).
_LEAVING_S = 60.0


def serving_versions(control: ServerControl, model: str) -> list[int]:
    """Versions of a model that serve, ascending."""
    return sorted(row.version for row in control.index() if row.name == model and row.state == "READY")


def load(control: ServerControl, repository: Path | None, model: str) -> str:
    """Load a model, or reload it when its files changed, and wait until it serves; requests meanwhile are answered.

    Of a partitioned model its runtimes come first, and those that it no longer has go last; all of them where it is
    partitioned no more. A cascade's levels come before it, too; those of its own that it asks no more go after it.
    The models of an ensemble's steps come before it.

    Returns:
        What is served now and what was before, as a sentence.

    Raises:
        Internal: it does not load; what Triton says, and what keeps serving.
        InvalidArgument: its allocation is for other runtimes; what serves is left as it is.
        Unavailable: another process is changing the instances of its runtimes.
    """
    if repository is not None and _has_runtimes(control, repository, model):
        with changing(repository / model):
            return _load_family(control, repository, model)
    found = cascade(repository, model) if repository is not None else None
    if repository is not None and found is not None:
        return _load_cascade(control, repository, found)
    joint = ensemble(repository, model) if repository is not None else None
    steps = _load_steps(control, repository, joint) if joint is not None else []
    before = serving_versions(control, model)
    _load(control, repository, model)
    return "\n  ".join([_told(control, repository, model, before), *steps])


def _load_steps(control: ServerControl, repository: Path | None, joint: Ensemble) -> list[str]:
    """Load what an ensemble hands requests to; Triton would load the steps too, but by their config.pbtxt alone."""
    return [load(control, repository, step) for step in joint.steps if step != joint.name]


def _load_cascade(control: ServerControl, repository: Path, found: Cascade) -> str:
    before = serving_versions(control, found.name)
    served = [cascade(repository, found.name, version) for version in before]
    own = {level for each in (found, *served) if each is not None for level in each.own}
    published = [level for level in found.levels if ModelEntry(repository / level).versions()]
    levels = [load(control, repository, level) for level in published]
    _load(control, repository, found.name)
    told = _told(control, repository, found.name, before)
    former = _unload_levels(control, repository, found.name, own.difference(found.levels))
    return "\n  ".join([told, *levels, *(f"{level}: unloaded" for level in former)])


def _unload_levels(control: ServerControl, repository: Path, model: str, levels: Collection[str]) -> list[str]:
    """Unload levels once versions of their cascade that leave have left, but for those that another one asks."""
    asking = [each for each in cascades(repository) if each.name != model and serving_versions(control, each.name)]
    asked = {level for each in asking for level in each.levels}
    leaving = [level for level in sorted(levels) if level not in asked and serving_versions(control, level)]
    if leaving:
        _wait_until_left(control, model)
    for level in leaving:
        unload(control, repository, level)
    return leaving


def _load_family(control: ServerControl, repository: Path, front: str) -> str:
    kin = family(repository, front)
    runtimes = tuple(kin.runtime_models.values()) if kin is not None else ()
    check_allocation(repository, front)
    versions = versions_on_server(control, front) | wanted_versions(repository, front)
    before = {name: serving_versions(control, name) for name in (front, *runtimes)}
    try:
        _load_runtimes(control, repository, runtimes, versions)
        allocation = read_allocation(repository / front) if kin is not None else None
        if allocation is not None and allocation.loaded is not None:
            # A change that was killed: every runtime has been loaded as it wanted.
            write_allocation(repository / front, make_allocation(allocation.instances))
        _load(control, repository, front)
    except TidalError:
        with suppress(TidalError):  # what has failed is what is told
            _take_back(control, repository, runtimes, serving_versions(control, front))
        raise
    _wait_until_left(control, front)
    serving = serving_versions(control, front)
    for name in runtimes:
        _load(control, repository, name, serving)
    needed = {*runtimes, *_called(repository, front, serving)}
    former = [name for name in _runtimes(control, repository, front) if name not in needed]
    for name in former:
        control.unload(name)
    told = [_told(control, repository, name, before[name]) for name in (front, *runtimes)]
    return "\n  ".join([*told, *(f"{name}: unloaded" for name in former)])


def _load_runtimes(
    control: ServerControl, repository: Path, runtimes: Collection[str], versions: Collection[int]
) -> None:
    """Make runtimes serve those of these versions that they have; one that gets no instance is left as it is."""
    given = [name for name in runtimes if _gets_instances(repository, name)]
    for name in given:
        _load(control, repository, name, versions)
    for name in given:
        lacks = set(versions).intersection(ModelEntry(repository / name).versions())
        if lacks.difference(serving_versions(control, name)):
            # The supervisor has restarted it meanwhile, for the front as it was.
            _load(control, repository, name, versions)


def _take_back(control: ServerControl, repository: Path, runtimes: Collection[str], serving: Collection[int]) -> None:
    """Leave runtimes with the versions that their front serves; all they have where it serves none."""
    for name in runtimes if serving else ():
        if not set(serving).intersection(ModelEntry(repository / name).versions()):
            control.unload(name)
        elif _gets_instances(repository, name):
            load_model(control, repository, name, serving)


def _gets_instances(repository: Path, runtime: str) -> bool:
    active = active_config(repository, runtime)
    return active is None or active.instances > 0


def _load(control: ServerControl, repository: Path | None, model: str, versions: Collection[int] | None = None) -> None:
    before = serving_versions(control, model)
    try:
        load_model(control, repository, model, versions)
        active = active_config(repository, model)
    except TidalError as error:
        kept = f"; {_versions(before)} {_s('keep', before)} serving" if before else ""
        raise type(error)(f"model '{model}' does not load: {sentence(str(error))}{kept}") from None
    if (active is None or active.instances) and not serving_versions(control, model):
        raise Internal(f"model '{model}' was loaded and is not served")


def _told(control: ServerControl, repository: Path | None, model: str, before: list[int]) -> str:
    after = serving_versions(control, model)
    if not after:
        return f"{model}: not loaded, it is given no instance"
    if before == after:
        return f"{model}: {_versions(after)} {_s('serve', after)}{_newer(repository, model, after)}"
    return f"{model}: {_versions(after)} {_s('serve', after)} now" + (f", {_versions(before)} before" if before else "")


def reload(control: ServerControl, repository: Path | None, model: str) -> str:
    """As `load`, for a model that the server has.

    Raises:
        NotFound: the server does not serve it.
        Internal: it does not load; what Triton says, and what keeps serving.
    """
    if not serving_versions(control, model):
        raise NotFound(f"model '{model}' is not served: load it with tidal models load {model}")
    return load(control, repository, model)


def unload(control: ServerControl, repository: Path | None, model: str) -> str:
    """Take a model out of service; of a partitioned model also its runtimes, once it has answered its requests.

    Of a cascade also the levels that were built for it, unless another cascade that serves asks them.

    Raises:
        NotFound: the server does not serve it.
        Unavailable: another process is changing the instances of its runtimes.
    """
    if not serving_versions(control, model):
        raise NotFound(f"model '{model}' is not served")
    found = cascade(repository, model) if repository is not None else None
    if repository is not None and found is not None:
        control.unload(model)
        _unload_levels(control, repository, model, found.own)
    elif repository is None or not _has_runtimes(control, repository, model):
        control.unload(model)
    else:
        with changing(repository / model):
            control.unload(model)
            _wait_until_left(control, model)
            for name in _runtimes(control, repository, model):
                control.unload(name)
    return f"{model}: unloaded; requests in flight are still answered"


def _has_runtimes(control: ServerControl, repository: Path, model: str) -> bool:
    """Whether a model is a front, or was one when its runtimes were loaded."""
    kin = family(repository, model)
    return kin.front == model if kin is not None else bool(_runtimes(control, repository, model))


def _called(repository: Path, front: str, versions: Collection[int]) -> set[str]:
    """Models of the runtimes that a front of these versions calls."""
    called: set[str] = set()
    for version in versions:
        with suppress(TidalError):  # its files may be gone
            manifest = load_arlo_manifest(repository / front / str(version))
            if manifest.placement == "partitioned":
                called.update(runtime_model(front, runtime.max_length) for runtime in manifest.runtimes)
    return called


def _runtimes(control: ServerControl, repository: Path, front: str) -> list[str]:
    """Models of a front's runtimes that the server has, also of lengths that are no longer published."""
    form = re.compile(rf"{re.escape(front)}_len\d+")
    names = sorted({row.name for row in control.index() if row.state == "READY" and form.fullmatch(row.name)})
    return [name for name in names if front_of(repository, name) == front]  # any model may have such a name


def _wait_until_left(control: ServerControl, front: str) -> None:
    """Wait until versions of a front that are leaving have answered what they took, for as long as answers take."""
    end = time.monotonic() + _LEAVING_S
    while time.monotonic() < end:
        if not any(row.name == front and row.state == "UNLOADING" for row in control.index()):
            return
        time.sleep(0.1)


def _newer(repository: Path | None, model: str, serving: list[int]) -> str:
    published = ModelEntry(repository / model).versions() if repository is not None else []
    if repository is None or published[-1:] <= serving[-1:]:
        return ", as before"
    why = "its front calls it" if front_of(repository, model) is not None else "its version_policy asks"
    return f" as {why}; version {published[-1]} is published too"


def _versions(versions: list[int]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


def _s(verb: str, versions: list[int]) -> str:
    return verb if len(versions) > 1 else f"{verb}s"
