"""`tidal tasks add` for frozen encoders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidal.commands.encoder_tasks import EncoderTasks, encoder_task_view
from tidal.commands.output import progress_note
from tidal.commands.task_views import TaskView
from tidal.manifest import MANIFEST_FILE
from tidal.pets.base import load_base_info, load_base_layers
from tidal.pets.manifest import PetsManifest, load_pets_manifest
from tidal.pets.tasks.folder import PetsTask, add_task, copy_task
from tidal.pets.tasks.manifest import Provenance
from tidal.tasks.folder import check_free, tasks_folder
from tidal.tasks.stored import Storage
from tidal_builders.commands.new_task import NewTask, needs_extra


def add_encoder_task(own: EncoderTasks, new: NewTask) -> TaskView:
    """Add a task to an encoder: a copy of a stored one, or an import that is compared with its source model.

    Args:
        own: Tasks of the encoder.
        new: The task to add.

    Raises:
        TidalError: The task is refused.
    """
    base, tasks = load_base_layers(own.version), tasks_folder(own.model)
    if new.stored:
        given = {
            "labels": new.labels,
            "task": new.task,
            "pooling": new.pooling,
            "max_answer_tokens": new.max_answer_tokens,
        }
        flags = {"half": new.half, "impossible_answers": new.impossible_answers}
        new.refuse_for_stored(**flags, **{name: value is not None for name, value in given.items()})
        return encoder_task_view(copy_task(tasks, new.name, new.source, base, replace=new.replace), base)
    check_free(tasks, new.name, replace=new.replace)
    with needs_extra("import a task"):
        from tidal_builders.foreign.trained_on import source_on_this_machine
        from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
        from tidal_builders.pets.importing.recognise import import_task
    options = ImportOptions(
        labels=new.labels,
        sparsity=new.sparsity,
        data=new.data,
        base_model=new.base_model,
        force=new.force,
        min_agreement=new.min_agreement,
        task=new.task,
        pooling=new.pooling,
        impossible_answers=new.impossible_answers,
        max_answer_tokens=new.max_answer_tokens,
    )
    manifest = _manifest(own.version)
    of_base = ImportBase(base, load_base_info(own.version))
    if manifest is not None:
        of_base = replace(
            of_base,
            name=manifest.source.model,
            folder=source_on_this_machine(manifest),
            tokenizer=own.version / manifest.tokenizer.file,
        )
    imported = import_task(new.source, of_base, options)
    with needs_extra("import a task"):
        from tidal_builders.pets.importing.comparison import (  # transformers: slow to load
            SourceComparison,
            verify_import,
        )
        from tidal_builders.pets.importing.sparsity import choose_sparsity
    comparison = SourceComparison(imported, own.version, new.data)
    if imported.at_sparsity is not None:
        progress_note("choosing a sparsity by the task's answers")
        imported = choose_sparsity(imported, comparison, options)

    def confirm(task: PetsTask) -> Provenance:
        progress_note("comparing the stored task with its source model")
        return verify_import(task, imported, comparison, options, half=new.half)

    task = add_task(
        tasks, new.name, imported.kind, imported.terms, base, imported.provenance,
        storage=Storage(new.half), replace=new.replace, verify=confirm,
    )  # fmt: skip
    return encoder_task_view(task, base)


def _manifest(version: Path) -> PetsManifest | None:
    """Manifest of a version, if it has one."""
    return load_pets_manifest(version) if (version / MANIFEST_FILE).is_file() else None
