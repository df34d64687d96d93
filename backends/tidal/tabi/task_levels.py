"""Levels that are tasks of a shared encoder: whether a task is still the one that a cascade was calibrated with."""

from __future__ import annotations

from pathlib import Path

from tidal.errors import InvalidArgument, Unavailable
from tidal.pets.tasks.manifest import read_task_info
from tidal.tabi.manifest import TabiManifest
from tidal.tasks.folder import Stamp, read_task, scan_one, tasks_folder


class TaskUnavailable(Unavailable):
    """The task that a level is was removed or replaced, or cannot be used."""


class SharedTasks:
    """The tasks of a cascade's levels, looked at before each call: two stats of files.

    Temperature, cut-off and weights are those of one task. Another one under its name answers by its own measure, and
    nothing else would tell.

    Args:
        repository: with the levels' models.
        manifest: of the cascade.
    """

    def __init__(self, repository: Path, manifest: TabiManifest) -> None:
        self._repository = repository
        self._manifest = manifest
        self._good: dict[int, Stamp] = {}

    def check(self, index: int) -> None:
        """Hold a level to its task; those that are no tasks always pass.

        Args:
            index: of the level.

        Raises:
            TaskUnavailable: it is not there, or is another one than the cascade was built with.
        """
        level = self._manifest.levels[index]
        if level.task is None:
            return
        stamp = scan_one(tasks_folder(self._repository / level.model), level.task)
        if stamp is None and not (self._repository / level.model).is_dir():
            return  # the server has the model from another repository
        if stamp is None or stamp != self._good.get(index):
            problem = task_problem(self._repository, self._manifest, index)
            if problem is not None:
                raise TaskUnavailable(problem)
            if stamp is not None:
                self._good[index] = stamp


def task_problem(repository: Path, manifest: TabiManifest, index: int) -> str | None:
    """What keeps a level from being the task that the cascade was built with, as a sentence; None: nothing.

    Args:
        repository: with the task's model.
        manifest: of the cascade.
        index: of a level that is a task.
    """
    level = manifest.levels[index]
    assert level.task is not None
    named = f"task '{level.task}' of model '{level.model}'"
    rebuild = f"rebuild with `{manifest.rebuild_command(repository)}`"
    try:
        info = read_task(tasks_folder(repository / level.model), level.task, read_task_info)
    except InvalidArgument as error:
        return f"{named} cannot be used: {error}; add it again, or {rebuild}"
    if info.fingerprint != level.fingerprint:
        return f"{named} is another one than the cascade was built with; {rebuild}"
    return None
