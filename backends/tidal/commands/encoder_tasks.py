"""`tidal tasks` for frozen encoders and their fine-tuned tasks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tidal.commands.task_views import TaskView
from tidal.pets.base import load_base_info, load_base_layers
from tidal.pets.kinds.kind import find_kind
from tidal.pets.tasks.facts import facts_of
from tidal.pets.tasks.folder import PetsTask, load_task
from tidal.pets.tasks.manifest import TaskInfo, read_task_info
from tidal.pets.terms import BaseLayers
from tidal.tasks.folder import tasks_folder
from tidal.tasks.record import TaskRecord


@dataclass(frozen=True, slots=True)
class EncoderTasks:
    """The tasks of one encoder; see `ModelTasks`.

    Attributes:
        model: Folder of the model in the repository.
        version: Folder of its newest version.
    """

    model: Path
    version: Path

    @property
    def digest(self) -> str:
        """Digest of the encoder's weights."""
        return load_base_info(self.version).digest

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """See `ModelTasks.read`."""
        info = read_task_info(folder)
        find_kind(info.kind)
        return info, info.kind, info.provenance.format

    def show(self, name: str) -> TaskView:
        """See `ModelTasks.show`."""
        base = load_base_layers(self.version)
        return encoder_task_view(load_task(tasks_folder(self.model), name, base), base)


def encoder_task_view(task: PetsTask, base: BaseLayers) -> TaskView:
    """A task of an encoder as commands print it."""
    info, facts = task.info, facts_of(task.terms, base)
    return TaskView(
        name=task.name,
        record=info,
        data={"changes": asdict(facts)},
        summary=facts.sentence(),
        memory=f"{facts.memory_share:.1%} of the base's layers",
        lines={
            "kind": f"{info.kind}: {find_kind(info.kind).title}",
            "changes": facts.sentence(),
            "from": f"{info.provenance.format}, {info.provenance.source}",
        },
        notes=_notes(info),
    )


def _notes(info: TaskInfo) -> list[str]:
    kept, held = info.provenance.accuracy, info.provenance.answers
    lines = [f"note: {note}" for note in info.provenance.notes]
    if held is not None:
        lines.append(f"compared with {held.sentence()}")
    if kept is not None:
        lines.append(f"accuracy on {kept.rows} queries: {kept.accuracy:.2%}; the source's: {kept.source_accuracy:.2%}")
    return lines
