"""References of running batches to tasks, so that a removed task is freed when its last batch finishes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from tidal.errors import InvalidArgument
from tidal.pets.engine.contract import REMOVED_TASK, LoadedTask, foreign_task_error
from tidal.pets.torch_engine.tasks import TorchTask


class TaskReferences:
    """Counts the batches that run with each task, and frees a removed task after its last batch; thread-safe."""

    def __init__(self) -> None:
        self._used: Counter[TorchTask] = Counter()
        self._leaving: set[TorchTask] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._used) + len(self._leaving)

    def remove(self, task: LoadedTask) -> None:
        """Free a task as soon as no batch runs with it; further calls do nothing.

        Args:
            task: Task of this engine.

        Raises:
            InvalidArgument: The task is of another engine.
        """
        own = _own(task)
        with self._lock:
            self._leaving.add(own)
            self._free([own])

    @contextmanager
    def using(self, tasks: Sequence[LoadedTask | None]) -> Iterator[list[TorchTask | None]]:
        """Keep tasks in memory while a batch runs.

        Args:
            tasks: Task of each row of the batch.

        Raises:
            InvalidArgument: A task was removed, or is of another engine.
        """
        own = [None if task is None else _own(task) for task in tasks]
        distinct = {task for task in own if task is not None}
        with self._lock:
            if any(task.removed or task in self._leaving for task in distinct):
                raise InvalidArgument(REMOVED_TASK)
            self._used.update(distinct)
        try:
            yield own
        finally:
            with self._lock:
                self._used.subtract(distinct)
                for task in distinct:
                    if self._used[task] == 0:
                        del self._used[task]
                self._free(distinct & self._leaving)

    def _free(self, tasks: Iterable[TorchTask]) -> None:
        for task in tasks:
            if task not in self._used:
                self._leaving.discard(task)
                task.release()


def _own(task: LoadedTask) -> TorchTask:
    if not isinstance(task, TorchTask):
        raise foreign_task_error(task)
    return task
