"""What a build of any kind is planned and made by: what is published, why that is not enough, one build at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from tidal import device
from tidal.device import DeviceKind, library_version
from tidal.errors import InvalidArgument
from tidal.manifest import FileRecord, Published, sha256_file
from tidal.repository.entries import ModelEntry, write_atomically
from tidal_builders.fingerprint import changes, fingerprint, hash_source
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


def ingredients(
    spec: BaseModel, source: Path, code: str, kind: DeviceKind, threads: int, libraries: Sequence[str]
) -> dict[str, str]:
    """What every version is made of, as texts that change when it does.

    Args:
        spec: what is asked for.
        source: folder of the source model.
        code: hash over the code that decides what is built.
        kind: of the device that it is built for.
        threads: it runs on.
        libraries: whose versions count.
    """
    parts = {f"spec.{name}": json.dumps(value) for name, value in json.loads(spec.model_dump_json()).items()}
    parts |= {
        "source files": hash_source(source),
        "builder code": code,
        "device": str(device.here(kind)),
        "threads": str(threads),
    }
    return parts | {f"{_LIBRARY}{name}": library_version(name) or "none" for name in libraries}


def samples_file(samples: Path | None, base: Path) -> Path | None:
    """The file of a spec's own samples, from the folder that its relative paths start from.

    Raises:
        InvalidArgument: there is none.
    """
    found = None if samples is None else base / samples.expanduser()
    if found is not None and not found.is_file():
        raise InvalidArgument(f"field 'samples': there is no file {found}")
    return found


def write_config_once(entry: ModelEntry, text: Callable[[], str]) -> None:
    """Write `config.pbtxt` where there is none; one that is there belongs to the operator."""
    path = entry.folder / "config.pbtxt"
    if not path.exists():
        write_atomically(path, text())


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
