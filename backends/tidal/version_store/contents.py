"""The contents of a fetch: downloaded and verified in a working folder, then placed as versions, tasks and configs."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidal.catalog.graph import ModelGraph
from tidal.errors import Unavailable
from tidal.manifest import sha256_file
from tidal.repository.config import CONFIG_FILE
from tidal.repository.entries import ModelEntry, sync
from tidal.tasks.folder import move_task, tasks_folder
from tidal.version_store.store import VersionStore
from tidal.version_store.stored_version import StoredFile, StoredTask, StoredVersion, TaskRevision
from tidal.version_store.transfers import ByteCount, Report, in_parallel


class Contents:
    """Verified contents in a working folder, and the folders that are made of them.

    Args:
        store: The store.
        work: Working folder, on the file system of the repository.
        report: Called with the progress.
    """

    def __init__(self, store: VersionStore, work: Path, report: Report) -> None:
        self._store, self._work, self._report = store, work, report
        self._blobs = work / "blobs"
        # Permissions of the contents that files of versions are links to, by hash.
        self._linked: dict[str, int] = {}

    def get(self, files: Mapping[str, StoredFile], title: str) -> None:
        """Download contents, each once, that an earlier call did not leave here.

        Args:
            files: Files by a name for errors.
            title: Name of the step for the progress.
        """
        if not files:
            return
        self._blobs.mkdir(parents=True, exist_ok=True)
        named = {file.sha256: (name, file) for name, file in files.items()}
        left = {key: each for key, each in named.items() if not self._has(each[1])}
        total = sum(file.bytes for _, file in left.values())
        free = shutil.disk_usage(self._work).free
        if total > free:
            raise Unavailable(f"{self._work} has {free} bytes free, and {total} are to be fetched: free the difference")
        count = ByteCount(self._report, f"fetch {title}", total)
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

    def place_task(self, repository: Path, task: StoredTask | TaskRevision, *, replace: bool) -> None:
        """Make a task visible, or replace one, in one step."""
        staging = self._new_folder()
        for file in task.files:
            self._put(file, staging / file.path, shared=False)
        move_task(staging, tasks_folder(repository / task.model), task.name, replace=replace)

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
