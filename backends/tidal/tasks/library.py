"""Tasks of a model: the existing ones, rescanned while serving, and those in the engine's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Generic

from tidal.metrics import Metrics
from tidal.tasks.cache import TaskCache
from tidal.tasks.folder import scan, scan_one
from tidal.tasks.lease import Handle, Lease, Task
from tidal.tasks.metrics import TaskMetrics
from tidal.tasks.names import is_task_name


class TaskLibrary(Generic[Task, Handle]):
    """Tasks of one model; any thread may call any method.

    Args:
        folder: Folder of the model's tasks, which need not exist.
        read: Reads a task by name from the folder and verifies it; also an attribute of the library.
        load: Loads a task into the engine's memory, see `TaskCache`.
        unload: Removes a task from the engine's memory.
        budget: Memory limit of all tasks together, in bytes.
        metrics: Metrics of the model.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[str], Task],
        load: Callable[[Task], Handle],
        unload: Callable[[Handle], None],
        budget: int,
        metrics: Metrics,
    ) -> None:
        self.read = read
        self._folder = folder
        self._budget = budget
        self._metrics = TaskMetrics(metrics)
        self._cache: TaskCache[Task, Handle] = TaskCache(read, load, unload, budget)
        self._scanning = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Rescan the folder; costs one `stat` per task."""
        # One at a time: an older scan must not overwrite a newer one.
        with self._scanning:
            self._cache.update(scan(self._folder))
            self._metrics.show(self._cache.state(), self._budget)

    def names(self) -> list[str]:
        """Return the names of all tasks, as of the last scan."""
        return self._cache.names()

    def acquire(self, name: str) -> Future[Lease[Handle]]:
        """Acquire a task for use, also one that was added since the last scan; see `TaskCache.acquire`.

        Args:
            name: Name of the task.

        Raises:
            InvalidArgument: There is no such task; names similar ones.
            Unavailable: The model is being unloaded.
        """
        if not self._cache.knows(name) and is_task_name(name) and scan_one(self._folder, name) is not None:
            self.refresh()
        return self._cache.acquire(name)

    def acquire_now(self, name: str) -> Lease[Handle] | None:
        """Acquire a task for use if it is in memory; see `TaskCache.acquire_now`."""
        return self._cache.acquire_now(name)

    def close(self) -> None:
        """Unload all tasks, those in use once they are released."""
        self._cache.close()
