"""A cascade's levels in the model repository: which are missing, which run in its process, which tasks changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.errors import InvalidArgument, Unavailable
from tidal.pets.tasks.manifest import read_task_info
from tidal.tabi.manifest import TabiManifest
from tidal.tasks.folder import Stamp, read_task, scan_one, tasks_folder


class TaskUnavailable(Unavailable):
    """The task that a level uses was removed or replaced, or cannot be used."""


def embedded_levels(
    repository: Path,
    manifest: TabiManifest,
    placement: Literal["embedded", "models"],
    levels: Iterable[int],
    read: Callable[[Path], ArloManifest] = load_arlo_manifest,
) -> tuple[int, ...]:
    """Return the indices of the levels that run in the cascade's process.

    Three kinds of levels do not: a partitioned model, whose runtimes are models of the server; a task of a shared
    encoder; and a version that is not in the repository, which a server may have from another one.

    Args:
        repository: Model repository with the levels' models.
        manifest: Manifest of the cascade.
        placement: Parameter `levels` of the cascade's config.pbtxt.
        levels: Indices of the levels that the cascade uses.
        read: Reader of the manifest in a version's folder; raises InvalidArgument if it is not one of an Arlo model.
    """
    if placement == "models":
        return ()
    return tuple(index for index in levels if _polymorphic(repository, manifest, index, read))


def missing_levels(repository: Path, manifest: TabiManifest, levels: Iterable[int]) -> list[str]:
    """Return one sentence per level whose version is missing in a repository; a server may have it from another one.

    A task that differs from the one that the cascade was built with is reported too: it may return while the cascade
    serves.

    Args:
        repository: Model repository with the levels' models.
        manifest: Manifest of the cascade.
        levels: Indices of the levels that the cascade uses.

    Raises:
        InvalidArgument: The version of a level is not the one that the cascade was built with.
    """
    problems = []
    for index in levels:
        level = manifest.levels[index]
        folder = repository / level.model / str(level.version)
        rebuild = f"rebuild with `{manifest.rebuild_command(repository)}`"
        if level.task is not None:
            problem = task_problem(repository, manifest, index)
            problems += [] if problem is None else [f"level {index + 1}: {problem}"]
        elif not folder.is_dir():
            problems.append(
                f"level {index + 1} needs version {level.version} of model '{level.model}', which is not in "
                f"{repository}; {rebuild}"
            )
        elif load_arlo_manifest(folder).fingerprint != level.fingerprint:
            raise InvalidArgument(
                f"version {level.version} of model '{level.model}' is not the one that the cascade '{manifest.name}' "
                f"was built with; {rebuild}"
            )
    return problems


def task_problem(repository: Path, manifest: TabiManifest, index: int) -> str | None:
    """Return why a level is not the task that the cascade was built with, as a sentence; None if it is.

    Args:
        repository: Model repository with the task's model.
        manifest: Manifest of the cascade.
        index: Index of a level that is a task.
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
        return f"{named} differs from the one that the cascade was built with; {rebuild}"
    return None


class TaskLevels:
    """Checks, before each call, that a level's task is the one that the cascade was built with: two file stats.

    Temperature, cut-off and weights were fitted for one task. Another task with its name would answer with other
    logits, and nothing else would detect it.

    Args:
        repository: Model repository with the levels' models.
        manifest: Manifest of the cascade.
    """

    def __init__(self, repository: Path, manifest: TabiManifest) -> None:
        self._repository = repository
        self._manifest = manifest
        self._checked: dict[int, Stamp] = {}

    def check(self, index: int) -> None:
        """Check a level's task; a level that is not a task always passes.

        Args:
            index: Index of the level.

        Raises:
            TaskUnavailable: The task is missing, or differs from the one that the cascade was built with.
        """
        level = self._manifest.levels[index]
        if level.task is None:
            return
        stamp = scan_one(tasks_folder(self._repository / level.model), level.task)
        if stamp is None and not (self._repository / level.model).is_dir():
            return  # the server has the model from another repository
        if stamp is None or stamp != self._checked.get(index):
            problem = task_problem(self._repository, self._manifest, index)
            if problem is not None:
                raise TaskUnavailable(problem)
            if stamp is not None:
                self._checked[index] = stamp


def _polymorphic(repository: Path, manifest: TabiManifest, index: int, read: Callable[[Path], ArloManifest]) -> bool:
    level = manifest.levels[index]
    if level.task is not None:
        return False
    try:
        return read(repository / level.model / str(level.version)).placement == "polymorphic"
    except InvalidArgument:
        return False
