"""Train a task: a head for every γ, and prompts for γ above 0; the transformer is not changed (OTAS §III-B)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from tidal.otas.manifest import OtasForm
from tidal.otas.tasks import Head, TaskParameters
from tidal_builders.otas.training.images import FloatArray, IntArray, LabelledImages, Pixels
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.steps import autocast, load_checkpoint, replace, save_checkpoint, schedule, shuffled
from tidal_builders.otas.transformer import TransformerModel

# Called with the γ that is being trained, and the share of its training that is done.
Progress = Callable[[int, float], None]


def train_task(
    model: TransformerModel,
    base: str,
    form: OtasForm,
    images: LabelledImages,
    settings: ImageTrainingSettings,
    work: Path,
    progress: Progress = lambda _gamma, _share: None,
) -> TaskParameters:
    """Train a task separately for each γ of a model; heads of γ above 0 start from the head of γ = 0.

    Results and checkpoints are stored in `work`: an interrupted training continues with the same result.

    Args:
        model: The transformer, which is not changed.
        base: Digest of its weights.
        form: Shapes of the published model.
        images: Images to train on.
        settings: Settings of the training.
        work: Folder for results and checkpoints; it may contain those of other trainings, and nothing is removed.
        progress: Called after every epoch.
    """
    key = json.dumps([base, model.accumulate, images.digest, asdict(settings)], sort_keys=True)
    folder = work / hashlib.sha256(key.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    trained: dict[int, Mapping[str, torch.Tensor]] = {}
    target_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, pixels = model.to(target_device), Pixels(images, form.image)
    for gamma in sorted(form.gammas, key=abs):
        done = folder / f"{gamma}.safetensors"
        if not done.exists():
            first = trained[0] if gamma > 0 else None
            initial = _Task(model, gamma, len(images.labels), settings.seed, first)
            parts = _train_gamma(model, gamma, initial.to(target_device), pixels, images, settings, folder, progress)
            replace(done, partial(save_file, dict(parts)))
            (folder / f"{gamma}.epoch").unlink(missing_ok=True)
        trained[gamma] = load_file(done)
        progress(gamma, 1.0)
    model.to("cpu")
    heads = {gamma: Head(_array(parts["head.weight"]), _array(parts["head.bias"])) for gamma, parts in trained.items()}
    prompts = {gamma: _array(parts["prompts"]) for gamma, parts in trained.items() if gamma > 0}
    own = {gamma: head for gamma, head in heads.items() if gamma != 0}
    return TaskParameters(images.labels, heads[0], own, prompts)


class _Task(nn.Module):
    """Trained parameters of one γ; the head starts from `first`, or from zeros."""

    def __init__(
        self, model: TransformerModel, gamma: int, classes: int, seed: int, first: Mapping[str, torch.Tensor] | None
    ) -> None:
        super().__init__()
        config = model.config
        self.head = nn.Linear(config.width, classes)
        with torch.no_grad():
            for name, parameter in self.head.named_parameters():
                parameter.copy_(torch.zeros(()) if first is None else first[f"head.{name}"])
        # The range in which patch embeddings are initialised, as in VPT.
        bound = math.sqrt(6 / (config.image.channels * math.prod(config.patch) + config.width))
        values = torch.empty(config.layers, max(gamma, 0), config.width)
        values.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
        self.prompts = nn.Parameter(values) if gamma > 0 else None


def _train_gamma(
    model: TransformerModel,
    gamma: int,
    task: _Task,
    pixels: Pixels,
    images: LabelledImages,
    settings: ImageTrainingSettings,
    folder: Path,
    progress: Progress,
) -> Mapping[str, torch.Tensor]:
    """Return the trained head and prompts of a γ, by their names in `_Task`."""
    target_device, checkpoint = next(model.parameters()).device, folder / f"{gamma}.epoch"
    truth = torch.from_numpy(images.truth).to(target_device)
    if gamma > 0:

        def logits(rows: IntArray) -> torch.Tensor:
            assert task.prompts is not None
            prompts = task.prompts.expand(len(rows), -1, -1, -1)
            with autocast(target_device):
                features = model(gamma, torch.from_numpy(pixels(rows)).to(target_device), prompts)
                found: torch.Tensor = task.head(features)
            return found.float()
    else:
        # Only the head is trained, so one pass over the images is enough.
        features = _features(model, gamma, pixels, settings.batch, target_device)

        def logits(rows: IntArray) -> torch.Tensor:
            found: torch.Tensor = task.head(features[rows])
            return found

    epochs = settings.epochs_at(gamma)
    steps = epochs * -(-len(images) // settings.batch)
    decayed = [{"params": task.head.parameters(), "weight_decay": settings.decay}]
    decayed += [] if task.prompts is None else [{"params": [task.prompts], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(decayed, lr=settings.rate)
    first = load_checkpoint(checkpoint, task, optimiser)
    step = first * -(-len(images) // settings.batch)
    for epoch in range(first, epochs):
        for rows in shuffled(len(images), settings, epoch):
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * schedule(step / steps)
            loss = functional.cross_entropy(logits(rows), truth[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
        if gamma > 0:
            save_checkpoint(checkpoint, epoch + 1, task, optimiser)
        progress(gamma, (epoch + 1) / epochs)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in task.state_dict().items()}


def _features(
    model: TransformerModel, gamma: int, pixels: Pixels, batch: int, target_device: torch.device
) -> torch.Tensor:
    with torch.inference_mode(), autocast(target_device):
        parts = [
            model(gamma, torch.from_numpy(pixels(range(begin, min(begin + batch, len(pixels))))).to(target_device))
            for begin in range(0, len(pixels), batch)
        ]
    return torch.cat(parts).float().clone()


def _array(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.numpy()
    return values
