"""Train a task: a head for every γ, and prompts for γ above 0; the transformer is not changed (OTAS §III-B)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tidal.otas.manifest import OtasForm
from tidal.otas.tasks import Head, TaskParameters
from tidal_builders.otas.training.gamma import Examples, GammaTraining, TrainedEpoch
from tidal_builders.otas.training.images import FloatArray, LabelledImages
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.steps import prepared, replace
from tidal_builders.otas.transformer import TransformerModel


@dataclass(frozen=True, slots=True)
class TrainedTask:
    """Result of a training.

    Attributes:
        parameters: Heads and prompts.
        epochs: Number of the epoch that was kept, by γ.
    """

    parameters: TaskParameters
    epochs: Mapping[int, int]


def train_task(
    model: TransformerModel,
    base: str,
    form: OtasForm,
    images: LabelledImages,
    settings: ImageTrainingSettings,
    work: Path,
    progress: Callable[[TrainedEpoch], None] = lambda _: None,
    *,
    validation: LabelledImages | None = None,
) -> TrainedTask:
    """Train a task separately for each γ of a model; heads of γ above 0 start from the head of γ = 0.

    Results and checkpoints are stored in `work`: an interrupted training continues with the same result.

    Args:
        model: The transformer, which is not changed.
        base: Digest of its weights.
        form: Shapes of the published model.
        images: Images to train on.
        settings: Settings of the training.
        work: Folder for results and checkpoints; it may contain those of other trainings, and nothing is removed.
        progress: Called after every epoch, and once for each γ that an earlier call has trained.
        validation: Images with the same labels, by whose accuracy an epoch is kept; needed with `patience`.
    """
    used = [images.digest, *([] if validation is None else [validation.digest])]
    key = json.dumps([base, model.accumulate, *used, asdict(settings)], sort_keys=True)
    folder = work / hashlib.sha256(key.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    trained: dict[int, Mapping[str, torch.Tensor]] = {}
    epochs: dict[int, int] = {}
    target_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    frozen = cast(TransformerModel, prepared(model, target_device))
    seen = Examples(images, frozen)
    unseen = None if validation is None else Examples(validation, frozen)
    for gamma in sorted(form.gammas, key=abs):
        done = folder / f"{gamma}.safetensors"
        if not done.exists():
            training = GammaTraining(frozen, gamma, seen, unseen, settings, folder / f"{gamma}.epoch", progress)
            kept = training.run(trained[0] if gamma > 0 else None)
            described = {"epoch": str(kept.epoch), "accuracy": str(kept.accuracy)}
            replace(done, partial(save_file, dict(kept.parameters), metadata=described))
            training.checkpoint.unlink(missing_ok=True)
        trained[gamma] = load_file(done)
        epochs[gamma], accuracy = _described(done)
        progress(TrainedEpoch(gamma, epochs[gamma], settings.epochs_at(gamma), accuracy, ended=True))
    heads = {gamma: Head(_array(parts["head.weight"]), _array(parts["head.bias"])) for gamma, parts in trained.items()}
    prompts = {gamma: _array(parts["prompts"]) for gamma, parts in trained.items() if gamma > 0}
    own = {gamma: head for gamma, head in heads.items() if gamma != 0}
    return TrainedTask(TaskParameters(images.labels, heads[0], own, prompts), epochs)


def _described(done: Path) -> tuple[int, float | None]:
    """Return the epoch that was kept, and its accuracy on validation images if there were any."""
    with safe_open(done, "pt") as file:
        found = file.metadata()
    return int(found["epoch"]), None if found["accuracy"] == "None" else float(found["accuracy"])


def _array(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.numpy()
    return values
