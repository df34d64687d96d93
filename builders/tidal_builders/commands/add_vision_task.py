"""`tidal tasks add` and `tidal tasks train` for vision transformers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.commands.task_views import TaskView
from tidal.commands.vision_tasks import VisionTasks, vision_task_view
from tidal.errors import InvalidArgument
from tidal.otas.tasks import OtasTaskRecord, copy_task
from tidal.tasks.folder import check_base, tasks_folder
from tidal.tasks.record import read_record
from tidal_builders.commands.new_task import NewTask, needs_extra

if TYPE_CHECKING:
    from tidal_builders.otas.registration import TaskRegistration


@dataclass(frozen=True, slots=True)
class TaskTraining:
    """Options of `tidal tasks train`.

    Attributes:
        data: Labelled images.
        name: Name of the task.
        labels: Names of the classes, if they are given.
        epochs: Largest number of passes over the images.
        patience: Passes without a higher accuracy on validation images that end the training; None: none do.
        batch: Images per step.
        rate: Largest learning rate.
        replace: Whether an existing task of this name is replaced.
    """

    data: Path
    name: str
    labels: tuple[str, ...] | None
    epochs: int
    patience: int | None
    batch: int
    rate: float
    replace: bool


def add_vision_task(own: VisionTasks, new: NewTask) -> TaskView:
    """Add a task to a vision transformer: a copy of a stored one, or a head and prompts whose accuracy is measured.

    Args:
        own: Tasks of the vision transformer.
        new: The task to add.

    Raises:
        TidalError: The task is refused.
    """
    model = f"the vision transformer '{own.manifest.name}'"
    if new.half or new.force or new.base_model is not None:
        raise InvalidArgument(f"--half, --force and --base-model are for tasks of texts, not for those of {model}")
    new.refuse_encoder_options(model)
    if new.stored and new.data is None:
        new.refuse_for_stored(labels=new.labels is not None)
        tasks = tasks_folder(own.model)
        return vision_task_view(copy_task(tasks, new.name, new.source, own.manifest, replace=new.replace))
    if new.data is None:
        raise InvalidArgument(
            f"a task of {model} needs labelled images, on which its accuracy is measured: name them by --data"
        )
    labels = new.labels
    if new.stored:
        record = read_record(new.source, OtasTaskRecord)
        check_base(record, own.manifest.base)
        labels = labels or record.labels
    with _registering(own, new.name, replace=new.replace) as registration:
        return vision_task_view(registration.from_parameters(new.source, labels, new.data))


def train_vision_task(own: VisionTasks, training: TaskTraining) -> TaskView:
    """Train a task and add it.

    Args:
        own: Tasks of the vision transformer.
        training: Options of the training.

    Raises:
        TidalError: The images are refused.
    """
    with needs_extra("train a task"):
        from tidal_builders.otas.training.settings import ImageTrainingSettings
    settings = ImageTrainingSettings(
        epochs=training.epochs, patience=training.patience, batch=training.batch, rate=training.rate
    )
    with _registering(own, training.name, replace=training.replace) as registration:
        return vision_task_view(registration.by_training(training.data, training.labels, settings))


def _registering(own: VisionTasks, name: str, *, replace: bool) -> AbstractContextManager[TaskRegistration]:
    with needs_extra("profile a task"):
        from tidal_builders.otas.registration import task_registration
    return task_registration(own.model, own.version, name, replace=replace)
