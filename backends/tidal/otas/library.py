"""Tasks of a vision transformer: prompts and heads in memory, within a budget."""

from __future__ import annotations

from pathlib import Path

from tidal.metrics import Metrics
from tidal.otas.manifest import OtasManifest
from tidal.otas.tasks import OtasTask, load_task
from tidal.tasks.library import TaskLibrary

OtasLibrary = TaskLibrary[OtasTask, OtasTask]


def open_library(folder: Path, manifest: OtasManifest, budget: int, metrics: Metrics) -> OtasLibrary:
    """Open the tasks in a folder.

    Args:
        folder: Folder of the model's tasks, which need not exist.
        manifest: Manifest of the model that the tasks have to fit.
        budget: Memory limit of all tasks' parameters together, in bytes.
        metrics: Metrics of the model.
    """
    return OtasLibrary(
        folder,
        lambda name: load_task(folder, name, manifest),
        lambda task: task,  # the engine takes prompts as inputs, so a task only has to be in memory
        lambda _task: None,
        budget,
        metrics,
    )
