"""Finished stages of a build, kept so that a build that was killed goes on where it stopped."""

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
    """Stages of one build, by name, in a folder of their own.

    A stage is a file or a folder that appears under its name only when it is complete. Use it while holding the
    model's build lock.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: list[str] = []
        self._made: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def reused(self) -> tuple[str, ...]:
        """Stages that an earlier process finished and this one used."""
        return tuple(name for name in dict.fromkeys(self._found) if name not in self._made)

    def stages(self, prefix: str) -> list[str]:
        """Names of finished stages that begin so."""
        return sorted(path.name for path in self._folder.iterdir() if path.name.startswith(prefix))

    def retain(self, prefixes: Collection[str]) -> None:
        """Remove the stages whose names begin with none of these."""
        for path in self._folder.iterdir():
            if not path.name.startswith(tuple(prefixes)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def record(self, name: str, kind: type[Record], make: Callable[[], Record]) -> Record:
        """The record of this name, made only if it is not there."""
        path = self._folder / f"{name}.json"
        if path.exists():
            self._found.append(name)
            return kind.model_validate_json(path.read_bytes())
        value = make()
        self._made.add(name)
        write_atomically(path, value.model_dump_json())
        return value

    def directory(self, name: str, fill: Callable[[Path], None]) -> Path:
        """The folder of this name, filled only if it is not there."""
        path = self._folder / name
        if path.exists():
            self._found.append(name)
            return path
        unfinished = self._folder / f"{_UNFINISHED}{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        fill(unfinished)
        self._made.add(name)
        unfinished.rename(path)
        return path


def open_workspace(model_folder: Path, fingerprint: str, *, anew: bool) -> Workspace:
    """The workspace of a build; those of other fingerprints are removed, and its own too with `anew`."""
    root = model_folder / WORK_FOLDER
    folder = root / fingerprint[:16]
    for other in root.iterdir() if root.is_dir() else ():
        if other.is_dir() and (anew or other != folder):
            shutil.rmtree(other, ignore_errors=True)
    return Workspace(folder)


def drop_workspaces(model_folder: Path) -> None:
    """Remove the stages of builds that are published."""
    for path in (model_folder / WORK_FOLDER).iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def build_lock(model_folder: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the model's build lock. The kernel frees it when its process ends, however it ends.

    Args:
        model_folder: the model's folder in the repository.
        waiting: told who holds the lock, when somebody else does.
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
