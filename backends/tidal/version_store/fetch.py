"""Fetching: versions of a store, with everything that they require, into a repository.

Contents are written to a folder of their own in the repository and verified there; then each version appears by one
rename, required ones first. A fetch that was killed leaves whole versions, and the next one continues with the contents
that are there. No version is removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.manifest import sha256_file
from tidal.repository.config import CONFIG_FILE
from tidal.repository.entries import ModelEntry, sync, sync_tree
from tidal.tasks.folder import tasks_folder
from tidal.version_store.folder import local_difference
from tidal.version_store.store import VersionStore
from tidal.version_store.stored_version import StoredFile, StoredTask, StoredVersion
from tidal.version_store.transfers import ByteCount, Report, in_parallel

# In the repository and not beside it: a rename needs one file system, and a repository may be a volume of its own.
WORK_FOLDER = ".fetch"
_MAX_REQUIRED = 1000


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was done with one version.

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


def fetch(
    store: VersionStore, repository: Path, model: str, version: int | None, report: Report, *, any_device: bool = False
) -> list[Fetched]:
    """Fetch a version with all that it requires.

    Args:
        store: The store.
        repository: Folder of the model repository; created if needed.
        model: Name of the model.
        version: Number of the version; None for the newest.
        report: Called with the progress.
        any_device: Whether to fetch versions that were built for other devices too.

    Returns:
        What was done with each version, required ones first.

    Raises:
        NotFound: The store does not have the model or version.
        InvalidArgument: A manifest or content is refused, a version was built for another device, or the repository has
            another version with its number; the repository is as it was.
        Unavailable: The store failed, or the repository cannot be written; the next call continues.
    """
    chain = _required_first(store, model, version)
    for stored in () if any_device else chain:
        _check_binding(stored)
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with _exclusive(repository):
            missing = [stored for stored in chain if not _is_here(repository, stored)]
            tasks = [task for stored in missing for task in stored.tasks if not _task_is_here(repository, task)]
            work = repository / WORK_FOLDER
            try:
                contents = _Contents(store, work, report)
                contents.get(missing)
                for stored in missing:
                    # A cascade checks its tasks when it loads.
                    for task in (task for task in stored.tasks if task in tasks):
                        contents.place_task(repository, task)
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
            "this one, or set --any-device where another machine serves this repository"
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
def _exclusive(repository: Path) -> Iterator[None]:
    """Be the only fetch into a repository; the kernel releases the lock with the process."""
    descriptor = os.open(repository, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Contents:
    """Verified contents in the working folder, and the folders that are made of them."""

    def __init__(self, store: VersionStore, work: Path, report: Report) -> None:
        self._store, self._work, self._report = store, work, report
        self._blobs = work / "blobs"
        # Permissions of the contents that files of versions are links to, by hash.
        self._linked: dict[str, int] = {}

    def get(self, versions: Sequence[StoredVersion]) -> None:
        """Download the contents of versions, each once, that an earlier call did not leave here."""
        if not versions:
            return
        self._blobs.mkdir(parents=True, exist_ok=True)
        named = {file.sha256: (name, file) for each in versions for name, file in each.all_files().items()}
        left = {key: each for key, each in named.items() if not self._has(each[1])}
        total = sum(file.bytes for _, file in left.values())
        free = shutil.disk_usage(self._work).free
        if total > free:
            raise Unavailable(f"{self._work} has {free} bytes free, and {total} are to be fetched: free the difference")
        count = ByteCount(self._report, f"fetch {versions[-1].model}", total)
        in_parallel(lambda each: self._store.download(each[1], each[0], self._blob(each[1]), count.add), left.values())

    def place(self, repository: Path, stored: StoredVersion) -> None:
        """Make a version visible, after the model's config.pbtxt where there is none."""
        staging = self._new_folder()
        for path in stored.folders:
            (staging / path).mkdir(parents=True)
        for file in stored.files:
            # Versions of Tidal are never written to; files of other models may be, in place.
            self._put(file, staging / file.path, shared=stored.kind is not None)
        entry = ModelEntry(repository / stored.model)
        entry.folder.mkdir(exist_ok=True)
        if stored.config is not None and not (entry.folder / CONFIG_FILE).exists():
            self._place_config(entry.folder / CONFIG_FILE, stored.config)
        entry.place(staging, stored.version)

    def place_task(self, repository: Path, task: StoredTask) -> None:
        """Make a task visible."""
        staging = self._new_folder()
        for file in task.files:
            self._put(file, staging / file.path, shared=False)
        tasks = tasks_folder(repository / task.model)
        tasks.mkdir(parents=True, exist_ok=True)
        sync_tree(staging)
        staging.rename(tasks / task.name)
        sync(tasks)

    def place_configs(self, repository: Path, versions: Sequence[StoredVersion]) -> None:
        """Restore each config.pbtxt that is missing, and replace those that builds generate.

        These are of runtimes' models: each gets that of its newest version.
        """
        graph = ModelGraph.read(repository)
        for stored in versions:
            name, config = stored.model, stored.config
            path = repository / name / CONFIG_FILE
            if config is None:
                continue
            generated = graph.front_of(name) is not None and graph.versions(name)[-1] == stored.version
            if not path.exists() or (generated and sha256_file(path) != config.sha256):
                if not self._has(config):
                    self._blobs.mkdir(parents=True, exist_ok=True)
                    self._store.download(config, f"{CONFIG_FILE} of model '{name}'", self._blob(config), lambda _: None)
                self._place_config(path, config)

    def _place_config(self, path: Path, config: StoredFile) -> None:
        """Write or replace a config.pbtxt at once; a kill leaves nothing beside it."""
        part = self._work / CONFIG_FILE
        shutil.copyfile(self._blob(config), part)
        sync(part)
        part.replace(path)
        sync(path.parent)

    def _put(self, file: StoredFile, target: Path, *, shared: bool) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = file.mode | stat.S_IRUSR
        linked = shared and self._linked.setdefault(file.sha256, mode) == mode and _link(self._blob(file), target)
        if not linked:
            shutil.copyfile(self._blob(file), target)
        target.chmod(mode)

    def _new_folder(self) -> Path:
        folder = self._work / "new"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _blob(self, file: StoredFile) -> Path:
        return self._blobs / file.sha256

    def _has(self, file: StoredFile) -> bool:
        path = self._blob(file)
        return path.is_file() and path.stat().st_size == file.bytes and sha256_file(path) == file.sha256


def _link(source: Path, target: Path) -> bool:
    """Make a hard link; returns whether the file system has them."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
