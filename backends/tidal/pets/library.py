"""The tasks of a base; those in use are in the engine's memory."""

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
    """A task in memory: its record, and the task as the engine loaded it."""

    info: TaskInfo
    loaded: LoadedTask


PetsLibrary = TaskLibrary[PetsTask, ServedTask]


def open_library(folder: Path, base: BaseLayers, engine: PetsEngine, budget: int, metrics: Metrics) -> PetsLibrary:
    """Open the tasks in a folder.

    Args:
        folder: Folder of the model's tasks; it may be missing.
        base: Layers of the base, for which the tasks must be made.
        engine: Engine that holds the tasks in use.
        budget: Memory in bytes that loaded tasks may take.
        metrics: Metrics of the model.
    """
    return PetsLibrary(
        folder,
        lambda name: load_task(folder, name, base),
        lambda task: ServedTask(task.info, engine.add(task.terms, cost_key=task.info.kind)),
        lambda task: engine.remove(task.loaded),
        budget,
        metrics,
    )
