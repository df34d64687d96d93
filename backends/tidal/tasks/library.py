"""The tasks beside a model: which there are, looked up again and again, and those in use, in the engine's memory."""

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
    """The tasks of one model. All methods may be called from any thread.

    Args:
        folder: the model's folder of tasks; it need not exist.
        read: a task by name from there, verified; `read` of the library itself too.
        load: puts a task into the engine's memory, see `TaskCache`.
        unload: takes it out.
        budget: bytes that the tasks in memory may take.
        metrics: the model's.
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
        """Take over which tasks there are now; a stat a task."""
        # One at a time: an older look at the folder must not undo a newer one.
        with self._scanning:
            self._cache.update(scan(self._folder))
            self._metrics.show(self._cache.state(), self._budget)

    def names(self) -> list[str]:
        """Tasks that there are, as far as is known."""
        return self._cache.names()

    def acquire(self, name: str) -> Future[Lease[Handle]]:
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
