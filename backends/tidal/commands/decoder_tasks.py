"""`tidal tasks` for decoders and their LoRA tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.commands.task_views import TaskView
from tidal.flover.manifest import FloverManifest, GenerationVerification
from tidal.flover.tasks.folder import DecoderBase, FloverTask, FloverTaskRecord, load_task
from tidal.tasks.folder import tasks_folder
from tidal.tasks.record import TaskRecord, read_record


@dataclass(frozen=True, slots=True)
class DecoderTasks:
    """The tasks of one decoder; see `ModelTasks`.

    Attributes:
        model: Folder of the model in the repository.
        version: Folder of its newest version.
        manifest: Manifest of that version.
    """

    model: Path
    version: Path
    manifest: FloverManifest

    @property
    def digest(self) -> str:
        """Digest of the decoder's weights."""
        return self.manifest.base

    @property
    def base(self) -> DecoderBase:
        """The decoder as its tasks see it."""
        return DecoderBase(self.manifest.base, self.manifest.form)

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """See `ModelTasks.read`."""
        record = read_record(folder, FloverTaskRecord)
        return record, record.kind, "peft"

    def show(self, name: str) -> TaskView:
        """See `ModelTasks.show`."""
        return decoder_task_view(load_task(tasks_folder(self.model), name, self.base))


def decoder_task_view(task: FloverTask) -> TaskView:
    """A task of a decoder as commands print it."""
    record, ranks = task.record, sorted({len(delta.down) for delta in task.deltas.values()})
    changes = f"low-rank differences (rank {', '.join(map(str, ranks))}) in {len(task.deltas)} layers"
    return TaskView(
        name=task.name,
        record=record,
        data={"changes": {"layers": len(task.deltas), "ranks": ranks}},
        summary=changes,
        memory="",
        lines={
            "kind": "lora: low-rank differences (LoRA)",
            "changes": changes,
            "from": record.provenance.source,
        },
        notes=[*(f"note: {note}" for note in record.provenance.notes), *_comparison(record.provenance.held)],
    )


def _comparison(held: GenerationVerification | None) -> list[str]:
    if held is None:
        return []
    return [
        f"compared with peft's generations: {held.match_rate:.1%} of {held.tokens} tokens agree, logits differ by "
        f"up to {held.max_error:.2g} standard deviations (accepted: {held.tolerance:g})"
    ]
