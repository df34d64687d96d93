"""Facts about models for `tidal models list`: published versions, manifests, and what a server serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidal.catalog.graph import ModelGraph
from tidal.errors import TidalError
from tidal.manifest import Published
from tidal.repository.config import instance_count
from tidal.server.active_config import active_config
from tidal.server.control import ModelState


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model; fields that do not apply or are not known are None.

    Attributes:
        name: Name of the model.
        published: Published versions, ascending.
        serves: Versions that serve, ascending.
        state: State by Triton, or why there is none.
        backend: Name of the backend or platform.
        instances: Number of instances to be loaded.
        engine: Engine of the version that serves, else of the newest.
        precision: Precision of its engines.
        max_length: Longest input in tokens.
        built: UTC time of its build, ISO 8601.
    """

    name: str
    published: tuple[int, ...]
    serves: tuple[int, ...]
    state: str
    backend: str | None
    instances: int | None = None
    engine: str | None = None
    precision: str | None = None
    max_length: int | None = None
    built: str | None = None


def model_facts(repository: Path | None, index: Sequence[ModelState] | None) -> list[ModelFacts]:
    """Facts about every model of a repository or server, sorted by name.

    Args:
        repository: Folder of the model repository; None where only the server is known.
        index: Repository index of the server; None without a server.
    """
    graph = ModelGraph.read(repository)
    names = sorted({*graph.models, *(row.name for row in index or ())})
    return [_facts(graph, name, index) for name in names]


def _facts(graph: ModelGraph, name: str, index: Sequence[ModelState] | None) -> ModelFacts:
    published = graph.versions(name)
    rows = [row for row in index or () if row.name == name]
    serves = tuple(sorted(row.version for row in rows if row.state == "READY"))
    # Of the version that serves, else of the newest.
    manifest = graph.manifest(name, serves[-1] if serves else None)
    backend, instances = _config(graph, name)
    return ModelFacts(
        name=name,
        published=published,
        serves=serves,
        state=_state(published, rows, known=index is not None),
        backend=backend,
        instances=instances,
        engine=manifest.engine if isinstance(manifest, Published) else None,
        precision=manifest.precision if isinstance(manifest, Published) else None,
        max_length=getattr(manifest, "max_length", None),  # not every kind has one
        built=manifest.created if manifest else None,
    )


def _state(published: tuple[int, ...], rows: Sequence[ModelState], *, known: bool) -> str:
    states = {row.state for row in rows}
    for state in ("READY", "LOADING", "UNLOADING"):
        if state in states:
            return state
    if any(row.state == "UNAVAILABLE" and row.reason != "unloaded" for row in rows):
        return "FAILED"
    if not published and not rows:
        return "not published"
    return "not loaded" if known else "no server"


def _config(graph: ModelGraph, model: str) -> tuple[str | None, int | None]:
    """Backend or platform of a model, and the instances to be loaded; an ensemble has none."""
    if model not in graph.models:
        return None, None
    try:
        config = graph.config(model)
    except TidalError:
        return None, None
    backend = config.get("backend") or config.get("platform")
    if config.get("platform") == "ensemble":
        return backend, None
    try:
        active = active_config(graph, model)
    except TidalError:
        return backend, None
    return backend, instance_count(config) if active is None else active.instances
