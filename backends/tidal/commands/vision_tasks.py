"""`tidal tasks` for vision transformers and their tasks' heads and prompts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.commands.task_kind import Adding, Told, needs_extra, refuse_sparsity
from tidal.errors import InvalidArgument
from tidal.otas.manifest import OtasManifest
from tidal.otas.tasks import OtasTask, OtasTaskRecord, copy_task, load_task
from tidal.tasks.folder import check_base, tasks_folder
from tidal.tasks.record import TaskRecord, read_record

if TYPE_CHECKING:
    from tidal_builders.otas.registering import Registering


@dataclass(frozen=True, slots=True)
class Training:
    """How a task is to be trained, as the command line says it."""

    data: Path
    name: str
    labels: tuple[str, ...] | None
    epochs: int
    batch: int
    rate: float
    replace: bool


@dataclass(frozen=True, slots=True)
class VisionTasks:
    """The tasks of one vision transformer; see `TaskKind`."""

    model: Path
    version: Path
    manifest: OtasManifest

    @property
    def digest(self) -> str:
        """Of the transformer's weights."""
        return self.manifest.base

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """See `TaskKind.read`."""
        record = read_record(folder, OtasTaskRecord)
        return record, record.kind, "trained" if record.provenance.settings else "given"

    def add(self, wish: Adding) -> Told:
        """See `TaskKind.add`: a stored task as it is, or a head and prompts, whose accuracies are measured."""
        if wish.half or wish.force or wish.base_model is not None:
            raise InvalidArgument(
                f"--half, --force and --base-model are for tasks of texts, not for those of {self._name}"
            )
        refuse_sparsity(wish, self._name)
        if wish.stored and wish.data is None:
            if wish.labels is not None:
                raise InvalidArgument(f"{wish.source} is a stored task, which is copied as it is: without --labels")
            tasks = tasks_folder(self.model)
            return _told(copy_task(tasks, wish.name, wish.source, self.manifest, replace=wish.replace))
        if wish.data is None:
            raise InvalidArgument(
                f"a task of {self._name} needs labelled images, on which its accuracy is measured: name them by --data"
            )
        labels = wish.labels
        if wish.stored:
            record = read_record(wish.source, OtasTaskRecord)
            check_base(record, self.manifest.base)
            labels = labels or record.labels
        with self._registering(wish.name, wish.replace) as task:
            return _told(task.from_parameters(wish.source, labels, wish.data))

    def train(self, wish: Training) -> Told:
        """Train a task and add it."""
        with needs_extra("train a task"):
            from tidal_builders.otas.training.settings import Settings
        settings = Settings(epochs=wish.epochs, batch=wish.batch, rate=wish.rate)
        with self._registering(wish.name, wish.replace) as task:
            return _told(task.by_training(wish.data, wish.labels, settings))

    def show(self, name: str) -> Told:
        """See `TaskKind.show`."""
        return _told(load_task(tasks_folder(self.model), name, self.manifest))

    @property
    def _name(self) -> str:
        return f"the vision transformer '{self.manifest.name}'"

    def _registering(self, name: str, replace: bool) -> AbstractContextManager[Registering]:
        with needs_extra("profile a task"):
            from tidal_builders.otas.registering import registering
        return registering(self.model, self.version, name, replace=replace)


def _told(task: OtasTask) -> Told:
    record = task.record
    accuracy = ", ".join(f"γ {gamma:+d} {share:.1%}" for gamma, share in sorted(task.accuracy.items()))
    provenance = record.provenance
    lines = {"kind": "otas: a head and prompts of a vision transformer", "accuracy": accuracy}
    if provenance.profiled is not None:
        lines["measured on"] = f"{provenance.profiled} images"
    lines["from"] = provenance.source
    if provenance.settings:
        lines["trained with"] = ", ".join(f"{name} {value}" for name, value in provenance.settings.items())
    # The accuracies and all else are in `task.json`.
    return Told(task.name, record, {}, f"accuracy {accuracy}", "", lines)
