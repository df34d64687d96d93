"""How `tidal tasks` describes the tasks of one model, whatever kind the model is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tidal.tasks.record import TaskRecord


@dataclass(frozen=True, slots=True)
class TaskView:
    """A verified task as commands print it.

    Attributes:
        name: Name of the task.
        record: Content of its `task.json`.
        data: Further values for `--json`.
        summary: Description in one clause.
        memory: Comparison for the bytes in memory, printed in brackets; empty for none.
        lines: Description in lines, by title.
        notes: Sentences on its origin, one line each.
    """

    name: str
    record: TaskRecord
    data: dict[str, Any]
    summary: str
    memory: str
    lines: dict[str, str]
    notes: list[str] = field(default_factory=list)


class ModelTasks(Protocol):
    """The tasks of one model. Methods raise `TidalError` with one sentence for a task that is refused."""

    @property
    def digest(self) -> str:
        """Digest of the base that its tasks name."""

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """Content of a task's `task.json`, its kind, and its origin in one word."""

    def show(self, name: str) -> TaskView:
        """Verify a task as a server does."""


def task_data(view: TaskView) -> dict[str, Any]:
    """A task as a JSON object."""
    return record_data(view.name, view.record) | view.data


def record_data(name: str, record: TaskRecord) -> dict[str, Any]:
    """A task's name and record as a JSON object."""
    return {"task": name, **record.model_dump(mode="json", exclude={"format"})}
