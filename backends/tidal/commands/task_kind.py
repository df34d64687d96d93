"""What `tidal tasks` asks of each kind of model that serves tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tidal.commands.output import fail
from tidal.errors import InvalidArgument
from tidal.tasks.record import TASK_FILE, TaskRecord
from tidal_client.extras import install_command

MISSING_EXTRA = 2


@dataclass(frozen=True, slots=True)
class Adding:
    """A task that is to be added, as the command line says it; what a kind does not know it refuses."""

    source: Path
    name: str
    labels: tuple[str, ...] | None
    half: bool
    sparsity: float | None
    data: Path | None
    base_model: Path | None
    replace: bool
    force: bool
    min_agreement: float | None = None

    @property
    def stored(self) -> bool:
        """Whether the source is a task's folder."""
        return (self.source / TASK_FILE).is_file()


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a task.

    Attributes:
        name: the task's.
        record: its `task.json`.
        data: what other programs are told beyond it.
        summary: what it is, in a clause.
        memory: what the bytes in memory compare to, in brackets; or nothing.
        lines: what it is at length, by title.
        notes: what is to be said of where it came from, a line each.
    """

    name: str
    record: TaskRecord
    data: dict[str, Any]
    summary: str
    memory: str
    lines: dict[str, str]
    notes: list[str] = field(default_factory=list)


class TaskKind(Protocol):
    """The tasks of one model. Methods raise `TidalError` with one sentence where something is refused."""

    @property
    def digest(self) -> str:
        """Of the base that its tasks name."""

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """A task's `task.json`; its kind, and in a word where it came from."""

    def add(self, wish: Adding) -> Told:
        """Add a task."""

    def show(self, name: str) -> Told:
        """Verify a task as a server does."""


def refuse_sparsity(wish: Adding, name: str) -> None:
    """Refuse what only tasks of encoders take; raises `InvalidArgument`."""
    if wish.sparsity is not None or wish.min_agreement is not None:
        raise InvalidArgument(f"--sparsity and --min-agreement are for tasks of encoders, not of {name}")


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Imports of the `build` extra; without it the command ends and says which to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"to {what} needs {error.name}: {install_command('build')}", MISSING_EXTRA)
