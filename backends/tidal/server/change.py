"""Changing which models and versions a server serves, and saying what came of it."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tidal.allocation import make_allocation, read_allocation, write_allocation
from tidal.errors import Internal, NotFound, TidalError
from tidal.family import family, front_of
from tidal.manifest import load_manifest
from tidal.repository import ModelEntry
from tidal.server.active_config import active_config, check_allocation, load_model
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
    partitioned no more.

    Returns:
        What is served now and what was before, as a sentence.

    Raises:
        Internal: it does not load; what Triton says, and what keeps serving.
        InvalidArgument: its allocation is for other runtimes; what serves is left as it is.
        Unavailable: another process is changing the instances of its runtimes.
    """
    if repository is None or not _has_runtimes(control, repository, model):
        return _load(control, repository, model)
    with changing(repository / model):
        kin = family(repository, model)
        present = kin.runtime_models.values() if kin is not None else ()
        check_allocation(repository, model)
        runtimes = [_load(control, repository, name) for name in present]
        allocation = read_allocation(repository / model) if kin is not None else None
        if allocation is not None and allocation.loaded is not None:
            # A change that was killed: every runtime has been loaded as it wanted.
            write_allocation(repository / model, make_allocation(allocation.instances))
        told = _load(control, repository, model)
        former = [name for name in _runtimes(control, repository, model) if name not in present]
        if kin is None and _partitioned_serves(control, repository, model):
            former = []  # its version_policy keeps an earlier version, which needs them
        if former:
            _wait_until_left(control, model)
            for name in former:
                control.unload(name)
    return "\n".join([told, *(f"  {line}" for line in runtimes), *(f"  {name}: unloaded" for name in former)])


def _load(control: ServerControl, repository: Path | None, model: str) -> str:
    before = serving_versions(control, model)
    try:
        load_model(control, repository, model)
        active = active_config(repository, model)
    except TidalError as error:
        kept = f"; {_versions(before)} keeps serving" if before else ""
        raise type(error)(f"model '{model}' does not load: {sentence(str(error))}{kept}") from None
    if active is not None and not active.instances:
        return f"{model}: not loaded, it is given no instance"
    after = serving_versions(control, model)
    if not after:
        raise Internal(f"model '{model}' was loaded and is not served")
    if before == after:
        return f"{model}: {_versions(after)} serves{_newer(repository, model, after)}"
    return f"{model}: {_versions(after)} serves now" + (f", {_versions(before)} before" if before else "")


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

    Raises:
        NotFound: the server does not serve it.
        Unavailable: another process is changing the instances of its runtimes.
    """
    if not serving_versions(control, model):
        raise NotFound(f"model '{model}' is not served")
    if repository is None or not _has_runtimes(control, repository, model):
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


def _partitioned_serves(control: ServerControl, repository: Path, model: str) -> bool:
    try:
        served = [load_manifest(repository / model / str(n)) for n in serving_versions(control, model)]
    except TidalError:
        return False
    return any(manifest.placement == "partitioned" for manifest in served)


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
    if published and published[-1] > serving[-1]:
        return f" as its version_policy asks; version {published[-1]} is published too"
    return ", as before"


def _versions(versions: list[int]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"
