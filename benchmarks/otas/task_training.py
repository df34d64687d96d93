"""Train the tasks of the live part's transformers, with an estimate of the remaining time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.otas.images import Images
from benchmarks.otas.recipe import Recipe
from benchmarks.otas.remaining import PromptTraining, RemainingTime
from benchmarks.report import progress
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import scan, tasks_folder
from tidal_builders.otas.registration import TaskRegistration
from tidal_builders.otas.training.gamma import TrainedEpoch


@dataclass(frozen=True, slots=True)
class TransformerTask:
    """A task of a published transformer, which may not be trained yet."""

    repository: Path
    model: str
    task: Images

    @property
    def entry(self) -> ModelEntry:
        """Model of the repository."""
        return ModelEntry(self.repository / self.model)

    @property
    def version(self) -> Path:
        """Newest version of the transformer."""
        version = self.entry.latest()
        assert version is not None, f"{self.model} is not built"
        return version

    @property
    def done(self) -> bool:
        """Whether the task is in the repository."""
        return self.task.task in scan(tasks_folder(self.entry.folder))

    def named(self, gamma: int) -> str:
        """Name of the training of a γ."""
        return f"{self.model}: {self.task.task}, γ {gamma}"


def train_tasks(trainings: Sequence[TransformerTask], how: Recipe) -> None:
    """Train missing tasks, as `tidal tasks train` does; an interrupted training continues after its last epoch."""
    missing = [each for each in trainings if not each.done]
    remaining = RemainingTime(_prompts(missing, how))
    for each in missing:
        _train(each, how, remaining)


def _prompts(trainings: Sequence[TransformerTask], how: Recipe) -> dict[str, PromptTraining]:
    """Return the trainings with prompts by name; those of heads alone take seconds."""
    found = {}
    for each in trainings:
        manifest, settings = load_otas_manifest(each.version), how.training(each.task.task)
        with np.load(each.task.train) as arrays:
            images = len(arrays["labels"])
        for gamma in manifest.gammas:
            if gamma > 0:
                work = images * _tokens(manifest, gamma)
                found[each.named(gamma)] = PromptTraining(work, settings.epochs_at(gamma))
    return found


def _tokens(manifest: OtasManifest, gamma: int) -> float:
    """Return the tokens of a layer on the mean."""
    return manifest.tokens + gamma * ((manifest.layers + 1) / 2 if manifest.accumulate else 1)


def _train(training: TransformerTask, how: Recipe, remaining: RemainingTime) -> None:
    since = time.monotonic()

    def report_epoch(finished: TrainedEpoch) -> None:
        nonlocal since
        name, before = training.named(finished.gamma), since
        since = time.monotonic()
        if finished.gamma > 0 and not finished.ended:
            remaining.timed(name, finished.epoch, since - before)
        if finished.gamma > 0 and finished.ended:
            remaining.ended(name)
        if finished.gamma > 0 or finished.ended:
            progress(f"{name}: {described(finished)}{_left(remaining)}")

    registration = TaskRegistration(training.entry.folder, training.version, training.task.task, epoch=report_epoch)
    task = training.task
    made = registration.by_training(task.train, task.labels, how.training(task.task))
    shares = ", ".join(f"γ {gamma}: {share:.3f}" for gamma, share in made.accuracy.items())
    progress(f"{training.model}: {task.task} {shares}")


def described(finished: TrainedEpoch) -> str:
    """Return an epoch in words."""
    rising = "" if finished.accuracy is None else f", {finished.accuracy:.1%} of the validation images right"
    if finished.ended:
        return f"trained, keeps epoch {finished.epoch} of at most {finished.most}{rising}"
    return f"epoch {finished.epoch} of at most {finished.most}{rising}"


def _left(remaining: RemainingTime) -> str:
    estimate = remaining.estimate()
    if estimate is None:
        return ""
    return f"; all prompts: about {estimate[0] / 60:.0f} min left, at most {estimate[1] / 60:.0f} min"
