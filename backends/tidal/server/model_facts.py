"""What is known of a repository's models: published versions, what their manifests say, what a server serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from tidal.errors import TidalError
from tidal.manifest import MANIFEST_FILE, Manifest, load_manifest
from tidal.repository import ModelEntry, model_entries
from tidal.server.control import ModelState


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model; fields that do not apply or are not known are None."""

    name: str
    published: tuple[int, ...]
    serves: tuple[int, ...]
    state: str
    backend: str | None
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
    return ModelFacts(
        name=name,
        published=published,
        serves=serves,
        state=_state(published, rows, known=index is not None),
        backend=_backend(entry),
        engine=manifest.engine if manifest else None,
        precision=manifest.precision if manifest else None,
        max_length=manifest.max_length if manifest else None,
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


def _manifest(entry: ModelEntry | None, serves: tuple[int, ...]) -> Manifest | None:
    """Manifest of the version that serves, else of the newest."""
    if entry is None:
        return None
    folder = entry.version_dir(serves[-1]) if serves else entry.latest()
    if folder is None or not (folder / MANIFEST_FILE).is_file():
        return None
    try:
        return load_manifest(folder)
    except TidalError:
        return None


def _backend(entry: ModelEntry | None) -> str | None:
    if entry is None:
        return None
    try:
        text = (entry.folder / "config.pbtxt").read_text(encoding="utf-8")
        config = text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
    except (OSError, UnicodeDecodeError, text_format.ParseError):
        return None
    return config.backend or config.platform or None
