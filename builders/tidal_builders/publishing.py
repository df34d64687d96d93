"""Publishes a finished build as the newest version of its model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from tidal.manifest import MANIFEST_FILE, FileRecord, Version, sha256_file
from tidal.repository.entries import ModelEntry, write_atomically
from tidal_builders.planning import BuildPlan, libraries_of
from tidal_builders.report import BuildReport
from tidal_builders.runner import BuildRun

ManifestT = TypeVar("ManifestT", bound=Version)
ReportT = TypeVar("ReportT", bound=BuildReport)


class VersionFields(TypedDict):
    """The fields that the manifests of all kinds have."""

    name: str
    created: str
    spec: str
    fingerprint: str
    ingredients: dict[str, str]
    libraries: dict[str, str]
    files: tuple[FileRecord, ...]


def publish_version(
    run: BuildRun[Any, Any],
    fill: Callable[[Path], None],
    describe: Callable[[Path, VersionFields], ManifestT],
    config: Callable[[ManifestT], str],
    place: Callable[[ManifestT, Path], int] | None = None,
) -> tuple[ManifestT, int]:
    """Write a version into a staging folder and make it the newest one, all at once.

    Args:
        run: The build; its workspace is removed, unless the kind keeps it.
        fill: Writes the version's files, without the manifest, into an existing folder.
        describe: Makes the manifest from the filled folder and the fields that all manifests have.
        config: Makes the text of the model's `config.pbtxt`, which is written if there is none.
        place: Moves the staged version into the repository and returns its number; default: as the next version.

    Returns:
        The manifest and the version's number.
    """
    run.progress("publish", 0.0)
    plan: BuildPlan[ManifestT] = run.plan
    staging = plan.entry.new_staging()
    fill(staging)
    fields = VersionFields(
        name=run.spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=run.origin,
        fingerprint=plan.fingerprint,
        ingredients=plan.ingredients,
        libraries=libraries_of(plan.ingredients),
        files=file_records(staging),
    )
    manifest = describe(staging, fields)
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
    version = place(manifest, staging) if place else plan.entry.publish(staging)
    write_config_once(plan.entry, lambda: config(manifest))
    run.finish()
    return manifest, version


def current_report(
    plan: BuildPlan[ManifestT],
    config: Callable[[ManifestT], str],
    report_of: Callable[[ManifestT, int | None], ReportT],
) -> ReportT:
    """Return the report of a version that is current, and restore `config.pbtxt` if it is missing.

    Args:
        plan: Plan of the build, without reasons.
        config: Makes the text of the model's `config.pbtxt` from the manifest of the version.
        report_of: Makes the report from that manifest and the number of the version.
    """
    manifest = plan.published
    assert manifest is not None
    write_config_once(plan.entry, lambda: config(manifest))
    return report_of(manifest, plan.version)


def write_config_once(entry: ModelEntry, text: Callable[[], str]) -> None:
    """Write a model's `config.pbtxt` if there is none; an existing one belongs to the operator."""
    path = entry.folder / "config.pbtxt"
    if not path.exists():
        write_atomically(path, text())


def file_records(folder: Path) -> tuple[FileRecord, ...]:
    """Relative path, size and hash of every file in a folder."""
    return tuple(
        FileRecord(path=str(path.relative_to(folder)), bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
