"""`tidal tasks` for frozen encoders and their fine-tuned tasks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tidal.commands.output import progress_note
from tidal.commands.task_kind import Adding, Told, needs_extra
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE
from tidal.pets.base import load_base_info, load_base_layers
from tidal.pets.kinds.kind import find_kind
from tidal.pets.manifest import PetsManifest, load_pets_manifest
from tidal.pets.tasks.facts import facts_of
from tidal.pets.tasks.folder import PetsTask, add_task, copy_task, load_task
from tidal.pets.tasks.manifest import Provenance, TaskInfo, read_task_info
from tidal.pets.terms import BaseLayers
from tidal.tasks.folder import check_free, tasks_folder
from tidal.tasks.record import TaskRecord
from tidal.tasks.stored import Storage


@dataclass(frozen=True, slots=True)
class EncoderTasks:
    """The tasks of one encoder; see `TaskKind`."""

    model: Path
    version: Path

    @property
    def digest(self) -> str:
        """Of the encoder's weights."""
        return load_base_info(self.version).digest

    def read(self, folder: Path) -> tuple[TaskRecord, str, str]:
        """See `TaskKind.read`."""
        info = read_task_info(folder)
        find_kind(info.kind)
        return info, info.kind, info.provenance.format

    def add(self, wish: Adding) -> Told:
        """See `TaskKind.add`."""
        base, tasks = load_base_layers(self.version), tasks_folder(self.model)
        if wish.stored:
            if wish.labels is not None or wish.half:
                raise InvalidArgument(
                    f"{wish.source} is a stored task, which is copied as it is: without --labels and --half"
                )
            return _told(copy_task(tasks, wish.name, wish.source, base, replace=wish.replace), base)
        check_free(tasks, wish.name, replace=wish.replace)
        with needs_extra("import a task"):
            from tidal_builders.foreign.trained_on import source_on_this_machine
            from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
            from tidal_builders.pets.importing.recognise import import_task
        options = ImportOptions(wish.labels, wish.sparsity, wish.data, wish.base_model, wish.force, wish.min_agreement)
        made_of = _made_of(self.version)
        name, folder = "", None
        if made_of is not None:
            name, folder = made_of.source.model, source_on_this_machine(made_of)
        found = import_task(wish.source, ImportBase(base, load_base_info(self.version), name, folder), options)
        with needs_extra("import a task"):
            from tidal_builders.pets.importing.comparison import (  # transformers: slow to load
                SourceComparison,
                verify_import,
            )
            from tidal_builders.pets.importing.sparsity import choose_sparsity
        comparison = SourceComparison(found, self.version, wish.data)
        if found.at_sparsity is not None:
            progress_note("choosing a sparsity by the task's answers")
            found = choose_sparsity(found, comparison, options)

        def confirm(task: PetsTask) -> Provenance:
            progress_note("comparing the stored task with its source model")
            return verify_import(task, found, comparison, options, half=wish.half)

        task = add_task(
            tasks, wish.name, found.kind, found.terms, base, found.provenance,
            storage=Storage(wish.half), replace=wish.replace, verify=confirm,
        )  # fmt: skip
        return _told(task, base)

    def show(self, name: str) -> Told:
        """See `TaskKind.show`."""
        base = load_base_layers(self.version)
        return _told(load_task(tasks_folder(self.model), name, base), base)


def _made_of(version: Path) -> PetsManifest | None:
    """What a version says that it was built from; None where it has no manifest."""
    return load_pets_manifest(version) if (version / MANIFEST_FILE).is_file() else None


def _told(task: PetsTask, base: BaseLayers) -> Told:
    info, facts = task.info, facts_of(task.terms, base)
    share = f"{facts.memory_share:.1%} of the base's layers"
    return Told(
        task.name,
        info,
        {"changes": asdict(facts)},
        facts.sentence(),
        share,
        {
            "kind": f"{info.kind}: {find_kind(info.kind).title}",
            "changes": facts.sentence(),
            "from": f"{info.provenance.format}, {info.provenance.source}",
        },
        _story(info),
    )


def _story(info: TaskInfo) -> list[str]:
    kept, held = info.provenance.accuracy, info.provenance.answers
    lines = [f"note: {note}" for note in info.provenance.notes]
    if held is not None:
        lines.append(f"compared with {held.sentence()}")
    if kept is not None:
        lines.append(f"accuracy on {kept.rows} queries: {kept.accuracy:.2%}; the source's: {kept.source_accuracy:.2%}")
    return lines
