"""The tasks of a vision transformer: prompts and heads in memory, within a budget."""

from __future__ import annotations

from pathlib import Path

from tidal.metrics import Metrics
from tidal.otas.manifest import OtasManifest
from tidal.otas.tasks import OtasTask, load_task
from tidal.tasks.library import TaskLibrary

OtasLibrary = TaskLibrary[OtasTask, OtasTask]


def open_library(folder: Path, manifest: OtasManifest, budget: int, metrics: Metrics) -> OtasLibrary:
    """The tasks in a folder.

    Args:
        folder: the model's folder of tasks; it need not exist.
        manifest: what the tasks have to be made for.
        budget: bytes that their parameters may take.
        metrics: the model's.
    """
    return OtasLibrary(
        folder,
        lambda name: load_task(folder, name, manifest),
        lambda task: task,  # the engine takes prompts as inputs: in memory is all that a task has to be
        lambda _task: None,
        budget,
        metrics,
    )
