"""`tidal tasks add` for decoders."""

from __future__ import annotations

from tidal.commands.decoder_tasks import DecoderTasks, decoder_task_view
from tidal.commands.output import progress_note
from tidal.commands.task_views import TaskView
from tidal.errors import InvalidArgument
from tidal.flover.tasks.folder import FloverProvenance, FloverTask, add_task, copy_task
from tidal.tasks.folder import check_free, tasks_folder
from tidal.tasks.stored import Storage
from tidal_builders.commands.new_task import NewTask, needs_extra


def add_decoder_task(own: DecoderTasks, new: NewTask) -> TaskView:
    """Add a task to a decoder: a copy of a stored one, or a LoRA adapter that is compared with its source model.

    Args:
        own: Tasks of the decoder.
        new: The task to add.

    Raises:
        TidalError: The task is refused.
    """
    model = f"the decoder '{own.manifest.name}'"
    if new.labels is not None or new.data is not None:
        raise InvalidArgument(f"--labels and --data are for tasks that classify, not for those of {model}")
    new.refuse_encoder_options(model)
    tasks = tasks_folder(own.model)
    if new.stored:
        new.refuse_for_stored(half=new.half)
        return decoder_task_view(copy_task(tasks, new.name, new.source, own.base, replace=new.replace))
    check_free(tasks, new.name, replace=new.replace)
    with needs_extra("import a task"):
        from tidal_builders.flover.importing import confirm_base, import_lora
    adapter = import_lora(new.source, own.base)
    trained = confirm_base(new.source, adapter.named, own.manifest, new.base_model, force=new.force)

    def confirm(task: FloverTask) -> FloverProvenance:
        progress_note("comparing the stored task with its source model")
        with needs_extra("import a task"):
            from tidal_builders.flover.task_verification import verify_task  # transformers: slow to load
        return verify_task(task, new.source, trained.folder, own.version, own.manifest, half=new.half, force=new.force)

    task = add_task(
        tasks, new.name, adapter.deltas, own.base,
        FloverProvenance(source=str(new.source), notes=(trained.note,)),
        storage=Storage(new.half), replace=new.replace, verify=confirm,
    )  # fmt: skip
    return decoder_task_view(task)
