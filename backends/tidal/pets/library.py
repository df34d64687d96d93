"""The tasks of a base, those in use in the engine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.metrics import Metrics
from tidal.pets.engine.contract import LoadedTask, PetsEngine
from tidal.pets.tasks.folder import PetsTask, load_task
from tidal.pets.tasks.manifest import TaskInfo
from tidal.pets.terms import BaseLayers
from tidal.tasks.library import TaskLibrary


@dataclass(frozen=True, slots=True)
class ServedTask:
    """A task in memory: what `task.json` says of it, and what the engine has of it."""

    info: TaskInfo
    loaded: LoadedTask


PetsLibrary = TaskLibrary[PetsTask, ServedTask]


def open_library(folder: Path, base: BaseLayers, engine: PetsEngine, budget: int, metrics: Metrics) -> PetsLibrary:
    """The tasks in a folder.

    Args:
        folder: the model's folder of tasks; it need not exist.
        base: what the tasks have to be made for.
        engine: holds the tasks that are in use.
        budget: bytes that their terms may take.
        metrics: the model's.
    """
    return PetsLibrary(
        folder,
        lambda name: load_task(folder, name, base),
        lambda task: ServedTask(task.info, engine.add(task.terms, cost_key=task.info.kind)),
        lambda task: engine.remove(task.loaded),
        budget,
        metrics,
    )
