"""`tidal tasks` for decoders and their LoRA tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.commands.output import progress_note
from tidal.commands.task_kind import Adding, Told, needs_extra, refuse_sparsity
from tidal.errors import InvalidArgument
from tidal.flover.manifest import FloverManifest, GenerationVerification
from tidal.flover.tasks.folder import (
    DecoderBase,
    FloverProvenance,
    FloverTask,
    FloverTaskRecord,
    add_task,
    copy_task,
    load_task,
)
from tidal.tasks.folder import check_free, tasks_folder
from tidal.tasks.record import TaskRecord, read_record
from tidal.tasks.stored import Storage


@dataclass(frozen=True, slots=True)
class DecoderTasks:
    """The tasks of one decoder; see `TaskKind`."""

    model: Path
    version: Path
    manifest: FloverManifest

    @property
    def digest(self) -> str:
        """Of the decoder's weights."""
        return self.manifest.base

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """See `TaskKind.read`."""
        record = read_record(folder, FloverTaskRecord)
        return record, record.kind, "peft"

    def add(self, wish: Adding) -> Told:
        """See `TaskKind.add`."""
        if wish.labels is not None or wish.data is not None:
            raise InvalidArgument(f"--labels and --data are for tasks that classify, not for those of {self._name}")
        refuse_sparsity(wish, self._name)
        tasks = tasks_folder(self.model)
        if wish.stored:
            if wish.half:
                raise InvalidArgument(f"{wish.source} is a stored task, which is copied as it is: without --half")
            return _told(copy_task(tasks, wish.name, wish.source, self._base, replace=wish.replace))
        check_free(tasks, wish.name, replace=wish.replace)
        with needs_extra("import a task"):
            from tidal_builders.flover.importing import confirm_base, import_lora
        found = import_lora(wish.source, self._base)
        trained = confirm_base(wish.source, found.named, self.manifest, wish.base_model, force=wish.force)

        def confirm(task: FloverTask) -> FloverProvenance:
            progress_note("comparing the stored task with its source model")
            with needs_extra("import a task"):
                from tidal_builders.flover.task_verification import verify_task  # transformers: slow to load
            return verify_task(
                task, wish.source, trained.folder, self.version, self.manifest, half=wish.half, force=wish.force
            )

        task = add_task(
            tasks, wish.name, found.deltas, self._base,
            FloverProvenance(source=str(wish.source), notes=(trained.note,)),
            storage=Storage(wish.half), replace=wish.replace, verify=confirm,
        )  # fmt: skip
        return _told(task)

    def show(self, name: str) -> Told:
        """See `TaskKind.show`."""
        return _told(load_task(tasks_folder(self.model), name, self._base))

    @property
    def _base(self) -> DecoderBase:
        return DecoderBase(self.manifest.base, self.manifest.form)

    @property
    def _name(self) -> str:
        return f"the decoder '{self.manifest.name}'"


def _told(task: FloverTask) -> Told:
    record, ranks = task.record, sorted({len(delta.down) for delta in task.deltas.values()})
    changes = f"low-rank differences (rank {', '.join(map(str, ranks))}) in {len(task.deltas)} layers"
    lines = {
        "kind": "lora: low-rank differences (LoRA)",
        "changes": changes,
        "from": record.provenance.source,
    }
    return Told(
        task.name,
        record,
        {"changes": {"layers": len(task.deltas), "ranks": ranks}},
        changes,
        "",
        lines,
        [*(f"note: {note}" for note in record.provenance.notes), *_compared(record.provenance.held)],
    )


def _compared(held: GenerationVerification | None) -> list[str]:
    if held is None:
        return []
    return [
        f"compared with peft's generations: {held.match_rate:.1%} of {held.tokens} tokens agree, logits differ by "
        f"up to {held.max_error:.2g} standard deviations (accepted: {held.tolerance:g})"
    ]
