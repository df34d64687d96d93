"""Decides the task of a source model from its files and its spec."""

from __future__ import annotations

from pathlib import Path

from tidal.encoder_tasks import TASKS
from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.sentence_files import activation_of, read_modules
from tidal_builders.foreign.recognise import Recognised, recognise, require


def choose_task(folder: Path, wanted: str, kind: str) -> str:
    """The task to build a source model for.

    Args:
        folder: Folder of the source model.
        wanted: Task of the spec, or "auto".
        kind: Kind of the spec, for errors.

    Raises:
        InvalidArgument: The model cannot be built for the task; or the task is "auto" and the files leave a choice.
    """
    if wanted != "auto":
        found = recognise(folder)
        if found.task not in BUILD_TASKS[wanted].sources:
            raise InvalidArgument(
                f"field 'task': {folder} cannot be built for {wanted}: it is {found.sentence()}; remove the field, or "
                "name the folder of another model"
            )
        return wanted
    accepted = frozenset(source for task in BUILD_TASKS.values() for source in task.sources)
    found = require(folder, accepted, kind)
    chosen = _choose(folder, found)
    if chosen is not None:
        return chosen
    choices = [f"{name} ({TASKS[name].meaning})" for name, task in BUILD_TASKS.items() if found.task in task.sources]
    raise InvalidArgument(
        f"field 'task': the files of {folder} leave it open (found {found.found}); set task to {' or '.join(choices)}"
    )


def _choose(folder: Path, found: Recognised) -> str | None:
    """The task that the files name; None if they leave a choice."""
    if found.task == "unknown":
        return "classification"
    if found.task == "regression":
        # A cross-encoder of sentence-transformers is marked; other models with one output may be either.
        if activation_of(folder) is not None:
            return "rerank"
        return "regression" if "problem_type" in found.evidence else None
    if found.task == "embedding":
        kinds = [module.kind for module in read_modules(folder)]
        return "sparse-embedding" if "SpladePooling" in kinds else "embedding"
    if found.task == "encoder":  # how to pool is not known
        return None
    names = [name for name, task in BUILD_TASKS.items() if found.task == task.native]
    return names[0] if names else None
