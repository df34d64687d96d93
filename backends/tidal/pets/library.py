"""The tasks beside a model: which there are, looked up again and again, and those in use, in the engine's memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.metrics import Metrics
from tidal.pets.engine.tasks import LoadedTask
from tidal.pets.metrics import TaskMetrics
from tidal.pets.tasks.cache import TaskCache
from tidal.pets.tasks.folder import Task, load_task, scan, scan_one
from tidal.pets.tasks.lease import Lease
from tidal.pets.tasks.names import is_task_name
from tidal.pets.terms import BaseLayers, FloatArray, TaskTerms

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


class TaskLibrary:
    """The tasks of one model. All methods may be called from any thread.

    Args:
        folder: the model's folder of tasks; it need not exist.
        base: what the tasks have to be made for.
        engine: holds the tasks that are in use.
        budget: bytes that their terms may take.
        metrics: the model's.
    """

    def __init__(self, folder: Path, base: BaseLayers, engine: Engine, budget: int, metrics: Metrics) -> None:
        self._folder, self._base = folder, base
        self._budget = budget
        self._metrics = TaskMetrics(metrics)
        self._cache: TaskCache[LoadedTask] = TaskCache(
            self.read, lambda task: engine.add(task.terms), engine.remove, budget
        )
        self._scanning = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Take over which tasks there are now; a stat a task."""
        # One at a time: an older look at the folder must not undo a newer one.
        with self._scanning:
            self._cache.update(scan(self._folder))
            self._metrics.show(self._cache.state(), self._budget)

    def names(self) -> list[str]:
        """Tasks that there are, as far as is known."""
        return self._cache.names()

    def read(self, name: str) -> Task:
        """A task from its folder, verified; raises as `load_task`."""
        return load_task(self._folder, name, self._base)

    def acquire(self, name: str) -> Future[Lease[LoadedTask]]:
        """Use a task, see `TaskCache.acquire`; one that was just added is found too.

        Raises:
            InvalidArgument: there is no such task; names close ones.
            Unavailable: the model is leaving.
        """
        if not self._cache.knows(name) and is_task_name(name) and scan_one(self._folder, name) is not None:
            self.refresh()
        return self._cache.acquire(name)

    def close(self) -> None:
        """Let all tasks go, those in use as soon as they are released."""
        self._cache.close()
