"""Model folders of a Triton repository: their versions, and publishing a new version atomically.

Layout of an entry: `<model>/config.pbtxt`, `<model>/<version>/{manifest.json, engines/, tokenizer/}`.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

STAGING_PREFIX = ".staging-"
# A publish keeps this many versions, so that an earlier one can be served again.
KEPT_VERSIONS = 3


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """Folder of one model in a repository.

    Attributes:
        folder: Path of the folder; its name is the name of the model.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Name of the model, as clients use it."""
        return self.folder.name

    def versions(self) -> list[int]:
        """Published versions, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.is_dir() and _is_version(p.name))

    def version_dir(self, version: int) -> Path:
        """Folder of a version."""
        return self.folder / str(version)

    def latest(self) -> Path | None:
        """Folder of the newest version; None where nothing is published."""
        versions = self.versions()
        return self.version_dir(versions[-1]) if versions else None

    def new_staging(self) -> Path:
        """Create an empty folder for the next version, next to the versions; Triton ignores it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        staging = self.folder / f"{STAGING_PREFIX}{os.getpid()}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        return staging

    def clear_staging(self) -> None:
        """Remove staging folders of builds that were killed. Call it while holding the model's build lock."""
        if self.folder.is_dir():
            for path in self.folder.glob(f"{STAGING_PREFIX}*"):
                shutil.rmtree(path, ignore_errors=True)

    def publish(self, staging: Path, version: int | None = None, needed: Collection[int] = ()) -> int:
        """Make a complete staging folder the newest version, and remove the oldest versions.

        Args:
            staging: Folder with all files of the version.
            version: Number of the new version; None for the next one.
            needed: Versions to keep besides the newest `KEPT_VERSIONS`.

        Returns:
            Number of the new version.
        """
        version = version or max(self.versions(), default=0) + 1
        self.place(staging, version)
        for old in sorted(set(self.versions()[:-KEPT_VERSIONS]) - set(needed)):
            self.remove(old)
        return version

    def place(self, staging: Path, version: int) -> None:
        """Make a complete staging folder a version.

        Everything is on disk before the one rename that makes it visible, so that a reader sees the whole version or
        none of it, even after a power loss.
        """
        sync_tree(staging)
        staging.rename(self.version_dir(version))
        sync(self.folder)

    def remove(self, version: int) -> None:
        """Remove a version."""
        # Renamed first: a partly removed folder must not be taken for a version.
        leaving = self.folder / f"{STAGING_PREFIX}old-{version}"
        shutil.rmtree(leaving, ignore_errors=True)
        self.version_dir(version).rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def model_entries(repository: Path) -> list[ModelEntry]:
    """Model folders of a repository, sorted by name: those with a config.pbtxt or a version."""
    entries = [ModelEntry(p) for p in sorted(repository.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    return [e for e in entries if (e.folder / "config.pbtxt").exists() or e.versions()]


def write_atomically(path: Path, content: str) -> None:
    """Write a file atomically: readers see the old content or the new, never a part. Several threads may write it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and name == str(int(name)) and int(name) > 0


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush a folder and everything in it to disk."""
    for path in (root, *root.rglob("*")):
        sync(path)
