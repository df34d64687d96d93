"""Cascades and the models of their levels: which have to be on the server for which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tidal.errors import InvalidArgument
from tidal.repository.config import read_config
from tidal.repository.entries import ModelEntry, model_entries
from tidal.tabi.choice import CandidateChoice
from tidal.tabi.levels import embedded_levels
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest
from tidal.tabi.parameters import TabiParameters


@dataclass(frozen=True, slots=True)
class Cascade:
    """A cascade's version: its name, and the models of its levels, ascending.

    Attributes:
        name: of the cascade's model.
        levels: models of the server that it asks, by its config: its levels but for those in its own process, and the
            encoders whose tasks levels are.
        own: models of levels that its build has published for it alone, those too that it does not ask.
    """

    name: str
    levels: tuple[str, ...]
    own: tuple[str, ...]


def cascade(repository: Path, model: str, version: int | None = None) -> Cascade | None:
    """A version of a cascade, the newest unless one is named; None for any other model or an unreadable manifest."""
    entry = ModelEntry(repository / model)
    folder = entry.latest() if version is None else entry.version_dir(version)
    if folder is None:
        return None
    try:
        manifest = load_tabi_manifest(folder)
    except InvalidArgument:
        return None
    mine = (level for level in manifest.levels if level.task is None)
    own = tuple(level.model for level in mine if level.model == f"{model}_{level.name}")
    asked = dict.fromkeys(manifest.levels[index].model for index in _asked(repository, entry, manifest))
    return Cascade(model, tuple(asked), own)


def cascades(repository: Path) -> list[Cascade]:
    """Every cascade of a repository, by name."""
    found = (cascade(repository, entry.name) for entry in model_entries(repository))
    return [each for each in found if each is not None]


def cascades_over(repository: Path, model: str, task: str) -> list[str]:
    """Names of the cascades one of whose levels, in the newest version, is this task of this model."""
    found = []
    for entry in model_entries(repository):
        folder = entry.latest()
        try:
            levels = load_tabi_manifest(folder).levels if folder is not None else ()
        except InvalidArgument:
            continue
        if any((level.model, level.task) == (model, task) for level in levels):
            found.append(entry.name)
    return found


def _asked(repository: Path, entry: ModelEntry, manifest: TabiManifest) -> tuple[int, ...]:
    """Indices of the levels that a cascade asks as models of the server.

    All where its config cannot be accepted, which its load will tell.
    """
    try:
        raw = read_config(entry.folder).get("parameters", {})
        own = {name: raw[name].get("string_value", "") for name in raw if name in TabiParameters.model_fields}
        parameters = TabiParameters.model_validate(own)
        levels = CandidateChoice(manifest, parameters.target()).levels
        embedded = embedded_levels(repository, manifest, parameters.levels, levels)
        return tuple(index for index in levels if index not in embedded)
    except (InvalidArgument, ValidationError):
        return tuple(range(len(manifest.levels)))
