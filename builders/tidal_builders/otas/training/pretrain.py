"""Trains a small vision transformer from nothing, where no pretrained one is at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from tidal.errors import InvalidArgument
from tidal.otas.images import ByteArray
from tidal_builders.otas.training.images import LabelledImages, Pixels
from tidal_builders.otas.training.settings import Settings
from tidal_builders.otas.training.steps import fast, keep, resume, schedule, shuffled
from tidal_builders.otas.transformer import TransformerModel
from tidal_builders.otas.vit import Vit, VitConfig

_LABEL_SMOOTHING = 0.1
_DECAY = 0.05
# Of the steps, the last ones that see whole images, as the trained model will.
_WHOLE = 0.1


@dataclass(frozen=True, slots=True)
class Variation:
    """How an image differs from epoch to epoch, so that it is not learnt by heart.

    Attributes:
        mirror: whether it is mirrored every other time.
        shift: most pixels that it is moved by, in both directions; what comes in is black.
        seen: share of its patches that are seen, others each time, in all but the last tenth of the steps: half the
            patches are half the time.
    """

    mirror: bool = False
    shift: int = 0
    seen: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.seen <= 1 or self.shift < 0:
            raise InvalidArgument(f"seen must be above 0 and at most 1, shift at least 0, got {self}")

    def varied(self, shown: ByteArray, draw: np.random.Generator) -> ByteArray:
        """Images [n, height, width, channels], each mirrored and moved by chance."""
        count, height, width, _ = shown.shape
        if self.mirror:
            shown = np.where(draw.random(count)[:, None, None, None] < 0.5, shown[:, :, ::-1], shown)
        if not self.shift:
            return shown
        by = self.shift
        padded = np.pad(shown, ((0, 0), (by, by), (by, by), (0, 0)))
        top, left = draw.integers(0, 2 * by + 1, (2, count, 1))
        rows, columns = top + np.arange(height), left + np.arange(width)
        moved: ByteArray = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return moved

    def patches(self, count: int, of: int, draw: np.random.Generator) -> npt.NDArray[np.int64] | None:
        """Places of the patches that each of `count` images shows, of `of` that it has; None: all."""
        kept = max(1, round(self.seen * of))
        return None if kept == of else draw.random((count, of)).argsort(axis=1)[:, :kept]


class _Classifier(nn.Module):
    def __init__(self, config: VitConfig, classes: int) -> None:
        super().__init__()
        self.transformer = TransformerModel(config)
        self.head = nn.Linear(config.width, classes)


def pretrain(
    config: VitConfig,
    images: LabelledImages,
    settings: Settings,
    progress: Callable[[float], None] = lambda _: None,
    *,
    variation: Variation = Variation(),
    checkpoint: Path | None = None,
) -> Vit:
    """Train a transformer to tell classes apart, and give it without the head that it did that with.

    Args:
        config: its form.
        images: with the classes.
        settings: of the training; `profiled` is not used.
        progress: told the share that is done, after every epoch.
        variation: of the images.
        checkpoint: file that every epoch is written to: a training that was killed goes on there, and comes to the
            same. It is the caller's to remove.
    """
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = _Classifier(config, len(images.labels)).to(place)
    pixels, truth = Pixels(images, config.image), torch.from_numpy(images.truth).to(place)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=_DECAY)
    first = 0 if checkpoint is None else resume(checkpoint, model, optimiser)
    steps = settings.epochs * -(-len(images) // settings.batch)
    step = first * -(-len(images) // settings.batch)
    for epoch in range(first, settings.epochs):
        draw = np.random.default_rng((settings.seed, epoch, 1))
        for rows in shuffled(len(images), settings, epoch):
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * schedule(step / steps)
            values = torch.from_numpy(pixels.values(variation.varied(pixels.shown(rows), draw))).to(place)
            whole = step >= steps * (1 - _WHOLE)
            patches = None if whole else variation.patches(len(rows), config.patches, draw)
            seen = None if patches is None else torch.from_numpy(patches).to(place)
            with fast(place):
                logits = model.head(model.transformer(0, values, None, seen))
            loss = functional.cross_entropy(logits.float(), truth[rows], label_smoothing=_LABEL_SMOOTHING)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
        if checkpoint is not None:
            keep(checkpoint, epoch + 1, model, optimiser)
        progress((epoch + 1) / settings.epochs)
    return Vit(config, {name: tensor.detach().cpu() for name, tensor in model.transformer.state_dict().items()})
