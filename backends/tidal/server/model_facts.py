"""What is known of a repository's models: published versions, what their manifests say, what a server serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import TidalError
from tidal.manifest import MANIFEST_FILE, Published
from tidal.otas.manifest import OtasManifest
from tidal.repository.config import instance_count, read_config
from tidal.repository.entries import ModelEntry, model_entries
from tidal.repository.published import AnyManifest, load_published
from tidal.server.active_config import active_config
from tidal.server.control import ModelState


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model; fields that do not apply or are not known are None."""

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
    """Every model of a repository or server, by name.

    Args:
        repository: where the models are, or None when only the server is known.
        index: the server's repository index, or None without a server.
    """
    entries = {e.name: e for e in model_entries(repository)} if repository is not None else {}
    names = sorted({*entries, *(row.name for row in index or ())})
    return [_facts(name, entries.get(name), index) for name in names]


def _facts(name: str, entry: ModelEntry | None, index: Sequence[ModelState] | None) -> ModelFacts:
    published = tuple(entry.versions()) if entry is not None else ()
    rows = [row for row in index or () if row.name == name]
    serves = tuple(sorted(row.version for row in rows if row.state == "READY"))
    manifest = _manifest(entry, serves)
    backend, instances = _config(entry)
    return ModelFacts(
        name=name,
        published=published,
        serves=serves,
        state=_state(published, rows, known=index is not None),
        backend=backend,
        instances=instances,
        engine=manifest.engine if isinstance(manifest, Published) else None,
        precision=manifest.precision if isinstance(manifest, Published) else None,
        max_length=None if manifest is None or isinstance(manifest, OtasManifest) else manifest.max_length,
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


def _manifest(entry: ModelEntry | None, serves: tuple[int, ...]) -> AnyManifest | None:
    """Manifest of the version that serves, else of the newest."""
    if entry is None:
        return None
    folder = entry.version_dir(serves[-1]) if serves else entry.latest()
    if folder is None or not (folder / MANIFEST_FILE).is_file():
        return None
    try:
        return load_published(folder)
    except TidalError:
        return None


def _config(entry: ModelEntry | None) -> tuple[str | None, int | None]:
    """Backend or platform, and the instances to be loaded; an ensemble has none."""
    if entry is None:
        return None, None
    try:
        config = read_config(entry.folder)
    except TidalError:
        return None, None
    backend = config.get("backend") or config.get("platform")
    if config.get("platform") == "ensemble":
        return backend, None
    try:
        active = active_config(entry.folder.parent, entry.name)
    except TidalError:
        return backend, None
    return backend, instance_count(config) if active is None else active.instances
