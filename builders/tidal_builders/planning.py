"""What a build of any kind is planned and made by: what is published, why that is not enough, one build at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tidal import device
from tidal.errors import InvalidArgument
from tidal.manifest import FileRecord, Published, sha256_file
from tidal.repository import ModelEntry
from tidal_builders.fingerprint import changes, fingerprint
from tidal_builders.report import BuildResult
from tidal_builders.workspace import Workspace, build_lock, open_workspace

Manifest = TypeVar("Manifest", bound=Published)
Planned = TypeVar("Planned", bound="BuildPlan[Any]")
Result = TypeVar("Result", bound=BuildResult)

Report = Callable[[str, float], None]
_LIBRARY = "library "


@dataclass(frozen=True, slots=True)
class BuildPlan(Generic[Manifest]):
    """What would be built from what, and why; nothing has to be built when there are no reasons."""

    entry: ModelEntry
    source: Path
    ingredients: dict[str, str]
    published: Manifest | None
    reasons: tuple[str, ...]

    @property
    def version(self) -> int | None:
        """The newest published version."""
        return max(self.entry.versions(), default=None)

    @property
    def fingerprint(self) -> str:
        """Of everything that a version is made of."""
        return fingerprint(self.ingredients)


def compare(
    entry: ModelEntry, load: Callable[[Path], Manifest], parts: Mapping[str, str]
) -> tuple[Manifest | None, tuple[str, ...]]:
    """The newest published version, as far as it can be read, and what makes it stale.

    Args:
        entry: of the model.
        load: reads a version folder's manifest; raises InvalidArgument.
        parts: today's ingredients.
    """
    latest = entry.latest()
    if latest is None:
        return None, ("no version is published",)
    try:
        manifest = load(latest)
        if reasons := changes(manifest.ingredients, parts):
            return manifest, tuple(reasons)
        manifest.check(latest, device.here(manifest.device.kind))
    except InvalidArgument as error:
        return None, (str(error),)
    return manifest, ()


def build_if_due(
    plan: Callable[[], Planned],
    current: Callable[[Planned], Result],
    build: Callable[[Planned, Workspace], Result],
    *,
    force: bool,
    report: Report,
) -> Result:
    """Build what the plan says, unless there is nothing to do; builds of one model wait for each other.

    Args:
        plan: compares what is published with what is wanted.
        current: what to say of a plan without reasons.
        build: builds in a workspace, which keeps finished stages for a build that goes on.
        force: build anew, from the first stage on.
        report: told what is waited for.
    """
    begin = time.monotonic()
    found = plan()
    if not found.reasons and not force:
        return _timed(current(found), begin)
    with build_lock(found.entry.folder, lambda message: report(message, 0.0)):
        found = plan()  # whoever held the lock may have built it
        if not found.reasons and not force:
            return _timed(current(found), begin)
        found.entry.clear_staging()
        work = open_workspace(found.entry.folder, found.fingerprint, anew=force)
        made = build(found, work)
    return _timed(made.model_copy(update={"reused": work.reused}), begin)


def libraries_of(ingredients: Mapping[str, str]) -> dict[str, str]:
    """Versions of the libraries among a build's ingredients."""
    return {name.removeprefix(_LIBRARY): text for name, text in ingredients.items() if name.startswith(_LIBRARY)}


def file_records(folder: Path) -> tuple[FileRecord, ...]:
    """Path within the folder, size and hash of every file in it."""
    return tuple(
        FileRecord(path=str(path.relative_to(folder)), bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def _timed(made: Result, begin: float) -> Result:
    return made.model_copy(update={"seconds": time.monotonic() - begin})
