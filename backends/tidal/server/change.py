"""Changing which models and versions a server serves, and saying what came of it."""

from __future__ import annotations

from pathlib import Path

from tidal.errors import Internal, NotFound, TidalError
from tidal.repository import ModelEntry
from tidal.server.active_config import load_model
from tidal.server.control import ServerControl
from tidal.server.reasons import sentence


def serving_versions(control: ServerControl, model: str) -> list[int]:
    """Versions of a model that serve, ascending."""
    return sorted(row.version for row in control.index() if row.name == model and row.state == "READY")


def load(control: ServerControl, repository: Path | None, model: str) -> str:
    """Load a model, or reload it when its files changed, and wait until it serves; requests meanwhile are answered.

    Returns:
        What is served now and what was before, as a sentence.

    Raises:
        Internal: it does not load; what Triton says, and what keeps serving.
    """
    before = serving_versions(control, model)
    try:
        load_model(control, repository, model)
    except TidalError as error:
        kept = f"; {_versions(before)} keeps serving" if before else ""
        raise type(error)(f"model '{model}' does not load: {sentence(str(error))}{kept}") from None
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


def unload(control: ServerControl, model: str) -> str:
    """Take a model out of service.

    Raises:
        NotFound: the server does not serve it.
    """
    if not serving_versions(control, model):
        raise NotFound(f"model '{model}' is not served")
    control.unload(model)
    return f"{model}: unloaded; requests in flight are still answered"


def _newer(repository: Path | None, model: str, serving: list[int]) -> str:
    published = ModelEntry(repository / model).versions() if repository is not None else []
    if published and published[-1] > serving[-1]:
        return f" as its version_policy asks; version {published[-1]} is published too"
    return ", as before"


def _versions(versions: list[int]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"
