"""Repositories and stores of the tests, and what a folder contains byte for byte."""

from __future__ import annotations

import stat
import uuid
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

from tidal.version_store.fetch import Fetched, fetch
from tidal.version_store.publish import Publication, publish
from tidal.version_store.store import VersionStore


def quiet(_step: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


def memory_store() -> VersionStore:
    """Return a store on a file system without links, as in a bucket."""
    root = f"/{uuid.uuid4().hex}/store"
    return VersionStore(MemoryFileSystem(), root, f"memory:/{root}")


def contents(folder: Path) -> dict[str, object]:
    """Content and permissions of each file by relative path, and None for each folder."""
    return {
        path.relative_to(folder).as_posix(): (
            None if path.is_dir() else (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        )
        for path in folder.rglob("*")
    }


def add_plain(repository: Path, model: str, version: int = 1, text: str = "a") -> Path:
    """Write a version of a model of Triton without Tidal's manifest."""
    folder = repository / model / str(version)
    (folder / "weights").mkdir(parents=True)
    (folder / "model.py").write_text(f"# {text}\n")
    (folder / "weights" / "shared").write_bytes(b"\0\1" * 1000)
    (folder / "weights" / "own").write_text(f"{model} {version} {text}")
    config = repository / model / "config.pbtxt"
    if not config.exists():
        config.write_text('backend: "python"\n')
    return folder


def send(store: VersionStore, repository: Path, *models: str) -> list[Publication]:
    return publish(store, repository, [(model, None) for model in models], quiet)


def get(store: VersionStore, repository: Path, model: str, version: int | None = None) -> list[Fetched]:
    return fetch(store, repository, model, version, quiet)
