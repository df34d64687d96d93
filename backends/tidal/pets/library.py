"""The tasks of a base; those in use are in the engine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.encoder_tasks.entries import task_entry
from tidal.encoder_tasks.head import TaskHead
from tidal.metrics import Metrics
from tidal.pets.engine.contract import LoadedTask, PetsEngine
from tidal.pets.tasks.folder import PetsTask, load_task
from tidal.pets.tasks.manifest import TaskInfo
from tidal.pets.terms import BaseLayers
from tidal.tasks.library import TaskLibrary
from tidal.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class ServedTask:
    """A task in memory.

    Attributes:
        info: Record of the task.
        loaded: The task as the engine loaded it.
        answering: Converter of the head's outputs to answers.
    """

    info: TaskInfo
    loaded: LoadedTask
    answering: TaskHead


PetsLibrary = TaskLibrary[PetsTask, ServedTask]


def open_library(
    folder: Path, base: BaseLayers, engine: PetsEngine, tokenizer: TextTokenizer, budget: int, metrics: Metrics
) -> PetsLibrary:
    """Open the tasks in a folder.

    Args:
        folder: Folder of the model's tasks; it may be missing.
        base: Layers of the base, for which the tasks must be made.
        engine: Engine that holds the tasks in use.
        tokenizer: Tokenizer of the model, for tasks that write token ids as text.
        budget: Memory in bytes that loaded tasks may take.
        metrics: Metrics of the model.
    """

    def load(task: PetsTask) -> ServedTask:
        answering = task_entry(task.info.head).open_head(task.info.settings, task.info.labels, tokenizer)
        return ServedTask(task.info, engine.add(task.terms, cost_key=task.info.kind), answering)

    return PetsLibrary(
        folder,
        lambda name: load_task(folder, name, base),
        load,
        lambda task: engine.remove(task.loaded),
        budget,
        metrics,
    )
