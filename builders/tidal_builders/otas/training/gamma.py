"""Train the head, and above 0 the prompts, of one γ on a frozen transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tidal_builders.otas.training.images import IntArray, LabelledImages, Pixels
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.steps import Stateful, autocast, load_checkpoint, save_checkpoint, schedule, shuffled
from tidal_builders.otas.training.stopping import EarlyStopping
from tidal_builders.otas.transformer import TransformerModel

# Returns the inputs of some images.
_Inputs = Callable[[IntArray], torch.Tensor]
# Memory limit of embedded images that are kept for all epochs and γ.
_MAX_BYTES = 1 << 30
# Images per pass where nothing is trained.
_BATCH = 64


@dataclass(frozen=True, slots=True)
class TrainedEpoch:
    """Progress of a training.

    Attributes:
        gamma: The γ that is trained.
        epoch: Number of finished epochs; if `ended`, the number of the epoch that was kept.
        most: Largest number of epochs.
        accuracy: Accuracy on the validation images after this epoch; None if there are none.
        ended: Whether this γ is trained.
    """

    gamma: int
    epoch: int
    most: int
    accuracy: float | None
    ended: bool = False

    @property
    def share(self) -> float:
        """Share of the training that is done, at least."""
        return 1.0 if self.ended else self.epoch / self.most


@dataclass(frozen=True, slots=True)
class KeptEpoch:
    """Parameters of the epoch that is kept, by their names in `_Task`, its number, and its accuracy if known."""

    parameters: Mapping[str, torch.Tensor]
    epoch: int
    accuracy: float | None


class Examples:
    """Images as inputs of a frozen transformer, and their classes.

    Args:
        images: The images.
        model: Transformer, see `steps.prepared`.
    """

    def __init__(self, images: LabelledImages, model: TransformerModel) -> None:
        config = model.config
        self.truth, self.classes = torch.from_numpy(images.truth), len(images.labels)
        self._pixels, self._model = Pixels(images, config.image), model
        self._device = next(model.parameters()).device
        # Embeddings of all images, if they fit.
        self._fit = len(images) * config.tokens * config.width * 4 <= _MAX_BYTES
        self._embedded: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self._pixels)

    def embedded(self, rows: IntArray) -> torch.Tensor:
        """Return the tokens of some images before the first layer; up to 1 GiB of them is computed once for all γ."""
        if not self._fit:
            return self._embed(rows)
        if self._embedded is None:
            self._embedded = torch.cat([self._embed(each) for each in self.batches()])
        return self._embedded[torch.from_numpy(rows)]

    def features(self, gamma: int) -> torch.Tensor:
        """Return the features of all images at a γ without prompts, of shape [images, width]."""
        with torch.no_grad(), autocast(self._device):
            return torch.cat([self._model.encode(gamma, self.embedded(rows)) for rows in self.batches()]).float()

    def _embed(self, rows: IntArray) -> torch.Tensor:
        with torch.no_grad(), autocast(self._device):
            return self._model.embed(torch.from_numpy(self._pixels(rows)).to(self._device)).float()

    def batches(self) -> Iterator[IntArray]:
        """Yield the rows of all images in their order, for passes without training."""
        for begin in range(0, len(self), _BATCH):
            yield np.arange(begin, min(begin + _BATCH, len(self)))


@dataclass(frozen=True)
class GammaTraining:
    """Training of one γ.

    Args:
        model: Frozen transformer, see `steps.prepared`.
        gamma: The γ.
        images: Images to train on.
        validation: Images whose accuracy ends the training of prompts, and chooses the epoch that is kept; None without
            early stopping.
        settings: Settings of the training.
        checkpoint: File that is written after every epoch with prompts, from which an interrupted training continues
            with the same result; the caller has to remove it.
        progress: Called after every epoch.
    """

    model: TransformerModel
    gamma: int
    images: Examples
    validation: Examples | None
    settings: ImageTrainingSettings
    checkpoint: Path
    progress: Callable[[TrainedEpoch], None]

    def run(self, first: Mapping[str, torch.Tensor] | None) -> KeptEpoch:
        """Train.

        Args:
            first: Parameters whose head is the initial one; None: zeros.
        """
        settings, most = self.settings, self.settings.epochs_at(self.gamma)
        task = _Task(self.model, self.gamma, self.images.classes, settings.seed, first).to(self._device)
        truth, inputs = self.images.truth.to(self._device), self._inputs(self.images)
        optimiser = torch.optim.AdamW(_groups(task, settings), lr=settings.rate)
        parts: dict[str, Stateful] = {"task": task, "optimiser": optimiser}
        unseen = None if self.validation is None else self._inputs(self.validation)
        best = self._stopping()
        if best is not None:
            parts["best"] = best
        finished = load_checkpoint(self.checkpoint, parts)
        steps = -(-len(self.images) // settings.batch)
        while finished < most and (best is None or not best.ends_after(finished)):
            for step, rows in enumerate(shuffled(len(self.images), settings, finished), finished * steps):
                for group in optimiser.param_groups:
                    group["lr"] = settings.rate * schedule(step / (most * steps))
                loss = functional.cross_entropy(self._logits(task, inputs(rows)), truth[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            finished += 1
            accuracy = None
            if best is not None and unseen is not None:
                accuracy = self._accuracy(task, unseen)
                best.record(finished, accuracy, task.state_dict())
            if self.gamma > 0:
                save_checkpoint(self.checkpoint, finished, parts)
            self.progress(TrainedEpoch(self.gamma, finished, most, accuracy))
        if best is None:
            return KeptEpoch(_stored(task.state_dict()), finished, None)
        return KeptEpoch(_stored(best.parameters), best.epoch, best.accuracy)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _stopping(self) -> EarlyStopping | None:
        patience = self.settings.patience
        if patience is None:
            return None
        assert self.validation is not None, "early stopping needs validation images"
        # An epoch of a head alone takes milliseconds, and its accuracy may rise late.
        return EarlyStopping(patience if self.gamma > 0 else self.settings.epochs_at(self.gamma))

    def _inputs(self, examples: Examples) -> _Inputs:
        """Return what the trained part receives: embedded images for prompts, or features, which are computed once."""
        if self.gamma > 0:
            return examples.embedded
        features = examples.features(self.gamma)
        return lambda rows: features[torch.from_numpy(rows)]

    def _logits(self, task: _Task, values: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, classes] from values of `_inputs`."""
        if task.prompts is None:
            found: torch.Tensor = task.head(values)
            return found
        prompts = task.prompts.expand(len(values), -1, -1, -1)
        with autocast(self._device):
            found = task.head(self.model.encode(self.gamma, values, prompts))
        return found.float()

    def _accuracy(self, task: _Task, unseen: _Inputs) -> float:
        """Return the share of the validation images that are classified correctly."""
        assert self.validation is not None
        right = 0
        with torch.inference_mode():
            for rows in self.validation.batches():
                answers = self._logits(task, unseen(rows)).argmax(dim=1).cpu()
                right += int((answers == self.validation.truth[rows]).sum())
        return right / len(self.validation)


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


def _groups(task: _Task, settings: ImageTrainingSettings) -> list[dict[str, Any]]:
    """Return the parameters with their weight decay."""
    groups: list[dict[str, Any]] = [{"params": task.head.parameters(), "weight_decay": settings.decay}]
    return groups + ([] if task.prompts is None else [{"params": [task.prompts], "weight_decay": 0.0}])


def _stored(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in parameters.items()}
