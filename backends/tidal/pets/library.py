"""The tasks of a base, those in use in the engine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.metrics import Metrics
from tidal.pets.engine.base import LoadedTask
from tidal.pets.tasks.folder import Task, load_task
from tidal.pets.tasks.manifest import TaskInfo
from tidal.pets.terms import BaseLayers, FloatArray, TaskTerms
from tidal.tasks.library import TaskLibrary

Integers = npt.NDArray[np.int32]


class Engine(Protocol):
    """What runs batches whose rows have tasks of their own; see `tidal.pets.engine.PetsEngine`."""

    def add(self, terms: TaskTerms) -> LoadedTask:
        """Take a task into memory."""

    def remove(self, task: LoadedTask) -> None:
        """Let a task go; batches that run with it end undisturbed."""

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Integers, lengths: Integers, type_ids: Integers | None = None
    ) -> FloatArray:
        """Pooled vectors [rows, width] of a batch: ids and types [rows, tokens], lengths [rows]."""


@dataclass(frozen=True, slots=True)
class ServedTask:
    """A task in memory: what `task.json` says of it, and what the engine has of it."""

    info: TaskInfo
    loaded: LoadedTask


PetsLibrary = TaskLibrary[Task, ServedTask]


def open_library(folder: Path, base: BaseLayers, engine: Engine, budget: int, metrics: Metrics) -> PetsLibrary:
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
        lambda task: ServedTask(task.info, engine.add(task.terms)),
        lambda task: engine.remove(task.loaded),
        budget,
        metrics,
    )
