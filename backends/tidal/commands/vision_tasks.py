"""`tidal tasks` for vision transformers and their tasks' heads and prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.commands.task_views import TaskView
from tidal.otas.manifest import OtasManifest
from tidal.otas.tasks import OtasTask, OtasTaskRecord, load_task
from tidal.tasks.folder import tasks_folder
from tidal.tasks.record import TaskRecord, read_record


@dataclass(frozen=True, slots=True)
class VisionTasks:
    """The tasks of one vision transformer; see `ModelTasks`.

    Attributes:
        model: Folder of the model in the repository.
        version: Folder of its newest version.
        manifest: Manifest of that version.
    """

    model: Path
    version: Path
    manifest: OtasManifest

    @property
    def digest(self) -> str:
        """Digest of the transformer's weights."""
        return self.manifest.base

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """See `ModelTasks.read`."""
        record = read_record(folder, OtasTaskRecord)
        return record, record.kind, "trained" if record.provenance.settings else "given"

    def show(self, name: str) -> TaskView:
        """See `ModelTasks.show`."""
        return vision_task_view(load_task(tasks_folder(self.model), name, self.manifest))


def vision_task_view(task: OtasTask) -> TaskView:
    """A task of a vision transformer as commands print it."""
    record = task.record
    accuracy = ", ".join(f"γ {gamma:+d} {share:.1%}" for gamma, share in sorted(task.accuracy.items()))
    provenance = record.provenance
    lines = {"kind": "otas: a head and prompts of a vision transformer", "accuracy": accuracy}
    if provenance.profiled is not None:
        lines["measured on"] = f"{provenance.profiled} images"
    lines["from"] = provenance.source
    if provenance.settings:
        lines["trained with"] = ", ".join(f"{name} {value}" for name, value in provenance.settings.items())
    # Accuracies and all other values are in `task.json`.
    return TaskView(name=task.name, record=record, data={}, summary=f"accuracy {accuracy}", memory="", lines=lines)
