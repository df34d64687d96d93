"""`Register_Task` (OTAS §IV): add a task from existing or newly trained parameters, with measured accuracies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidal import device
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.otas.runner import open_runner
from tidal.otas.tasks import OtasProvenance, OtasTask, TaskParameters, add_task, parameters_of
from tidal.tasks.folder import check_free, tasks_folder
from tidal.tasks.record import TENSORS_FILE
from tidal.tensor_file import parse_tensors, read_bounded
from tidal_builders.otas.training.accuracy import measure_accuracy
from tidal_builders.otas.training.division import divide
from tidal_builders.otas.training.gamma import TrainedEpoch
from tidal_builders.otas.training.images import LABELS_FILE, LabelledImages, read_images, read_labels
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.train import train_task
from tidal_builders.otas.transformer import load_transformer
from tidal_builders.otas.vit import read_vit
from tidal_builders.progress import clean_stdout, progress_bars

# Called with the name of the running stage and the share of it that is done.
Report = Callable[[str, float], None]

_WORK_FOLDER = ".training"
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TaskRegistration:
    """A task to be added to a published model.

    Attributes:
        model: Folder of the model in the repository.
        version: Folder of its newest version.
        name: Name of the task.
        replace: Whether an existing task may be replaced.
        report: Called with the progress.
        epoch: Called after every epoch of a training.
    """

    model: Path
    version: Path
    name: str
    replace: bool = False
    report: Report = lambda _stage, _share: None
    epoch: Callable[[TrainedEpoch], None] = lambda _: None

    def from_parameters(self, source: Path, labels: Sequence[str] | None, data: Path) -> OtasTask:
        """Add a task with a head and prompts from a folder.

        Args:
            source: Folder with `task.safetensors`, see `tidal.otas.tasks`, and `labels.json` if `labels` is None.
            labels: Labels of the classes.
            data: Labelled images to measure the accuracies on, see `read_images`.

        Raises:
            InvalidArgument: A file or the name is not accepted, or the parameters do not fit the model.
        """
        manifest = self._manifest()
        names = tuple(labels) if labels is not None else read_labels(source / LABELS_FILE)
        content = read_bounded(source / TENSORS_FILE, _MAX_BYTES)
        parameters = parameters_of(parse_tensors(content, TENSORS_FILE), names, manifest)
        return self._add(manifest, parameters, read_images(data, names), OtasProvenance(source=str(source)))

    def by_training(self, data: Path, labels: Sequence[str] | None, settings: ImageTrainingSettings) -> OtasTask:
        """Train a task for every γ on most of the images, and measure its accuracies on a fifth that is not trained on.

        An interrupted training continues from its last checkpoint.

        Args:
            data: Labelled images, see `read_images`.
            labels: Labels of the classes; None: those of the data.
            settings: Settings of the training.

        Raises:
            InvalidArgument: The images or the name are not accepted.
        """
        manifest = self._manifest()
        parts = divide(read_images(data, labels), settings)
        vit = read_vit(self.version)
        work = self.model / _WORK_FOLDER / self.name
        done = dict.fromkeys(manifest.gammas, 0.0)

        def report_epoch(finished: TrainedEpoch) -> None:
            done[finished.gamma] = finished.share
            self.report("train", sum(done.values()) / len(done))
            self.epoch(finished)

        model = load_transformer(vit, accumulate=manifest.accumulate)
        trained = train_task(
            model, manifest.base, manifest, parts.trained, settings, work, report_epoch, validation=parts.validation
        )
        described = settings.described()
        if parts.validation is not None:
            kept = [f"γ {gamma}: {epoch}" for gamma, epoch in sorted(trained.epochs.items())]
            described["kept_epochs"] = ", ".join(kept)
        made = OtasProvenance(source=str(data), settings=described)
        task = self._add(manifest, trained.parameters, parts.profiled, made)
        shutil.rmtree(work, ignore_errors=True)
        return task

    def _manifest(self) -> OtasManifest:
        """Return the version's manifest after checking that the task can be added."""
        manifest = load_otas_manifest(self.version)
        manifest.check(self.version, device.here(manifest.device.kind))
        check_free(tasks_folder(self.model), self.name, replace=self.replace)
        return manifest

    def _add(
        self, manifest: OtasManifest, parameters: TaskParameters, images: LabelledImages, made: OtasProvenance
    ) -> OtasTask:
        self.report("profile", 0.0)
        runner = open_runner(manifest, self.version)
        accuracy = measure_accuracy(runner, manifest, parameters, images, lambda share: self.report("profile", share))
        return add_task(
            tasks_folder(self.model),
            self.name,
            parameters,
            accuracy,
            manifest,
            made.model_copy(update={"profiled": len(images)}),
            replace=self.replace,
        )


@contextmanager
def task_registration(model: Path, version: Path, name: str, *, replace: bool) -> Iterator[TaskRegistration]:
    """Make a registration for a command, with progress bars on standard error; standard output is for the result.

    Args:
        model: Folder of the model in the repository.
        version: Folder of its newest version.
        name: Name of the task.
        replace: Whether an existing task may be replaced.
    """
    with progress_bars(name) as report, clean_stdout():
        yield TaskRegistration(model, version, name, replace, report)
