"""Finished stages of a build, kept on disk so that an interrupted build resumes where it stopped."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from tidal.repository.entries import write_atomically

WORK_FOLDER = ".build"
_UNFINISHED = ".unfinished-"

Record = TypeVar("Record", bound=BaseModel)


class Workspace:
    """Stages of one build, by name. Use it while holding the model's build lock.

    A stage is a file or a folder that appears under its name only when it is complete.

    Args:
        folder: Folder of the stages; it is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reused: list[str] = []
        self._run: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def reused(self) -> tuple[str, ...]:
        """Names of stages that an earlier process finished and this one used."""
        return tuple(name for name in dict.fromkeys(self._reused) if name not in self._run)

    def stages(self, prefix: str) -> list[str]:
        """Names of finished stages that begin with `prefix`."""
        return sorted(path.name for path in self._folder.iterdir() if path.name.startswith(prefix))

    def retain(self, prefixes: Collection[str]) -> None:
        """Remove all stages except those whose names begin with one of `prefixes`."""
        for path in self._folder.iterdir():
            if not path.name.startswith(tuple(prefixes)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def record(self, name: str, kind: type[Record], make: Callable[[], Record]) -> Record:
        """The result of a stage as data; the stage is run only if its record does not exist.

        Args:
            name: Name of the stage.
            kind: Class of the record.
            make: Runs the stage.
        """
        path = self._folder / f"{name}.json"
        if path.exists():
            self._reused.append(name)
            return kind.model_validate_json(path.read_bytes())
        value = make()
        self._run.add(name)
        write_atomically(path, value.model_dump_json())
        return value

    def directory(self, name: str, fill: Callable[[Path], None]) -> Path:
        """The result of a stage as a folder; the stage is run only if the folder does not exist.

        Args:
            name: Name of the stage.
            fill: Runs the stage, and writes into an empty folder.
        """
        path = self._folder / name
        if path.exists():
            self._reused.append(name)
            return path
        unfinished = self._folder / f"{_UNFINISHED}{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        fill(unfinished)
        self._run.add(name)
        unfinished.rename(path)
        return path


def open_workspace(model_folder: Path, fingerprint: str, *, discard: bool) -> Workspace:
    """Open the workspace of a build, and remove those of other builds of the model.

    Args:
        model_folder: Folder of the model in the repository.
        fingerprint: Fingerprint of the build, or the name of a workspace that later builds share.
        discard: Whether to remove the finished stages of this build as well.
    """
    root = model_folder / WORK_FOLDER
    folder = root / fingerprint[:16]
    for other in root.iterdir() if root.is_dir() else ():
        if other.is_dir() and (discard or other != folder):
            shutil.rmtree(other, ignore_errors=True)
    return Workspace(folder)


def drop_workspaces(model_folder: Path) -> None:
    """Remove all workspaces of a model, once its build is published."""
    for path in (model_folder / WORK_FOLDER).iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def build_lock(model_folder: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the model's build lock. The kernel releases it when the process ends or crashes.

    Args:
        model_folder: Folder of the model in the repository.
        waiting: Called with a message if another process holds the lock, before waiting for it.
    """
    root = model_folder / WORK_FOLDER
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            waiting(f"another build of {model_folder.name} is running (process {file.read().strip() or 'unknown'})")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
