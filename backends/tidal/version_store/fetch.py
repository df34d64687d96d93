"""Fetching: versions of a store, with everything that they require, into a repository.

Contents are written to a folder of their own in the repository and verified there; then each version appears by one
rename, required ones first. A fetch that was killed leaves whole versions, and the next one continues with the contents
that are there. No version is removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.manifest import sha256_file
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import tasks_folder
from tidal.version_store.contents import Contents
from tidal.version_store.folder import local_difference
from tidal.version_store.store import VersionStore
from tidal.version_store.stored_version import StoredTask, StoredVersion
from tidal.version_store.transfers import Report

# In the repository and not beside it: a rename needs one file system, and a repository may be a volume of its own.
WORK_FOLDER = ".fetch"
_MAX_REQUIRED = 1000


@dataclass(frozen=True, slots=True)
class Fetched:
    """Result of fetching one version.

    Attributes:
        model: Name of the model.
        version: Number of the version.
        state: Whether this call fetched it.
        files: Number of its files.
        bytes: Their size in bytes.
    """

    model: str
    version: int
    state: Literal["fetched", "here before"]
    files: int
    bytes: int


def roots(store: VersionStore) -> list[str]:
    """Models of a store whose newest version is not required by that of another, sorted."""
    models = store.models()
    required: set[str] = set()
    for model in models:
        try:
            required |= {each.model for each in store.read(model, store.newest(model)).requires}
        except TidalError:
            continue  # reported when it is fetched
    return [model for model in models if model not in required] or models


def fetch(store: VersionStore, repository: Path, model: str, version: int | None, report: Report) -> list[Fetched]:
    """Fetch a version with all that it requires.

    Args:
        store: The store.
        repository: Folder of the model repository; created if needed.
        model: Name of the model.
        version: Number of the version; None for the newest.
        report: Called with the progress.

    Returns:
        What was done with each version, required ones first.

    Raises:
        NotFound: The store does not have the model or version.
        InvalidArgument: A manifest or content is refused, a version was built for another device, or the repository has
            another version with its number; the repository is as it was.
        Unavailable: The store failed, or the repository cannot be written; the next call continues.
    """
    chain = _required_first(store, model, version)
    for stored in chain:
        _check_binding(stored)
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with only_fetch(repository):
            missing = [stored for stored in chain if not _is_here(repository, stored)]
            tasks = [task for stored in missing for task in stored.tasks if not _task_is_here(repository, task)]
            work = repository / WORK_FOLDER
            try:
                contents = Contents(store, work, report)
                contents.get({name: file for each in missing for name, file in each.all_files().items()}, model)
                for stored in missing:
                    # A cascade checks its tasks when it loads.
                    for task in (task for task in stored.tasks if task in tasks):
                        contents.place_task(repository, task, replace=False)
                        tasks.remove(task)
                    contents.place(repository, stored)
                contents.place_configs(repository, chain)
            except InvalidArgument:
                shutil.rmtree(work, ignore_errors=True)
                raise
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise Unavailable(f"{repository} cannot be written: {error}") from error
    fetched = {(stored.model, stored.version) for stored in missing}
    return [
        Fetched(
            stored.model,
            stored.version,
            "fetched" if (stored.model, stored.version) in fetched else "here before",
            len(stored.files),
            stored.bytes,
        )
        for stored in chain
    ]


def _required_first(store: VersionStore, model: str, version: int | None) -> list[StoredVersion]:
    order: list[StoredVersion] = []
    seen: set[tuple[str, int]] = set()

    def visit(name: str, number: int) -> None:
        if (name, number) in seen:
            return
        seen.add((name, number))
        if len(seen) > _MAX_REQUIRED:
            raise InvalidArgument(f"model '{model}' of {store.uri} requires more than {_MAX_REQUIRED} versions")
        stored = store.read(name, number)
        for each in stored.requires:
            visit(each.model, each.version)
        order.append(stored)

    visit(model, store.newest(model) if version is None else version)
    return order


def _check_binding(stored: StoredVersion) -> None:
    problems = stored.binding.problems() if stored.binding is not None else []
    if problems:
        raise InvalidArgument(
            f"{stored.title} was built for another machine: {'; '.join(problems)}; fetch a version that was built for "
            "this one"
        )


def _is_here(repository: Path, stored: StoredVersion) -> bool:
    """Whether the repository has a version; InvalidArgument if it has another one with its number."""
    folder = ModelEntry(repository / stored.model).version_dir(stored.version)
    if not folder.exists():
        return False
    difference = local_difference(folder, stored)
    if difference is not None:
        raise InvalidArgument(
            f"{folder} differs from {stored.title} in the store: {difference}; move it away, or fetch into another "
            "repository"
        )
    return True


def _task_is_here(repository: Path, task: StoredTask) -> bool:
    folder = tasks_folder(repository / task.model) / task.name
    if not folder.exists():
        return False
    for file in task.files:
        path = folder / file.path
        if not path.is_file() or sha256_file(path) != file.sha256:
            raise InvalidArgument(
                f"task '{task.name}' of model '{task.model}' in {repository} differs from the one that was published: "
                f"remove it with tidal tasks remove {task.model} {task.name}, then fetch again"
            )
    return True


@contextmanager
def only_fetch(repository: Path) -> Iterator[None]:
    """Be the only fetch into a repository; the kernel releases the lock with the process."""
    descriptor = os.open(repository, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
