"""Train a small vision transformer from scratch, where no pretrained one is available."""

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
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.steps import Stateful, autocast, load_checkpoint, save_checkpoint, schedule, shuffled
from tidal_builders.otas.transformer import TransformerModel
from tidal_builders.otas.vit import Vit, VitConfig

_LABEL_SMOOTHING = 0.1
_DECAY = 0.05
# Share of the steps, at the end, that use all patches, as the trained model does.
_FULL_IMAGE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Variation:
    """Data augmentation.

    Attributes:
        mirror: Whether images are mirrored with probability 0.5.
        shift: Maximum shift in both directions, in pixels; the border is filled with black.
        seen: Share of the patches that are used, chosen at random in all but the last tenth of the steps; half of the
            patches take half of the time.
    """

    mirror: bool = False
    shift: int = 0
    seen: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.seen <= 1 or self.shift < 0:
            raise InvalidArgument(f"seen must be above 0 and at most 1, shift at least 0, got {self}")

    def apply(self, decoded: ByteArray, draw: np.random.Generator) -> ByteArray:
        """Return images [n, height, width, channels], mirrored and shifted at random."""
        count, height, width, _ = decoded.shape
        if self.mirror:
            decoded = np.where(draw.random(count)[:, None, None, None] < 0.5, decoded[:, :, ::-1], decoded)
        if not self.shift:
            return decoded
        by = self.shift
        padded = np.pad(decoded, ((0, 0), (by, by), (by, by), (0, 0)))
        top, left = draw.integers(0, 2 * by + 1, (2, count, 1))
        rows, columns = top + np.arange(height), left + np.arange(width)
        moved: ByteArray = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return moved

    def patches(self, count: int, of: int, draw: np.random.Generator) -> npt.NDArray[np.int64] | None:
        """Draw indices of the patches to use in each of `count` images of `of` patches; None for all."""
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
    settings: ImageTrainingSettings,
    progress: Callable[[float], None] = lambda _: None,
    *,
    variation: Variation = Variation(),
    checkpoint: Path | None = None,
) -> Vit:
    """Train a transformer to classify images, and return it without its head.

    Args:
        config: Configuration of the transformer.
        images: Images and their classes.
        settings: Settings of the training; all epochs are trained, and `profiled` and `patience` are not used.
        progress: Called after every epoch with the share that is done.
        variation: Data augmentation.
        checkpoint: File that is written after every epoch, from which an interrupted training continues with the same
            result; the caller has to remove it. None for no checkpoints.
    """
    target_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = _Classifier(config, len(images.labels)).to(target_device)
    pixels, truth = Pixels(images, config.image), torch.from_numpy(images.truth).to(target_device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=_DECAY)
    parts: dict[str, Stateful] = {"task": model, "optimiser": optimiser}
    first = 0 if checkpoint is None else load_checkpoint(checkpoint, parts)
    steps = settings.epochs * -(-len(images) // settings.batch)
    step = first * -(-len(images) // settings.batch)
    for epoch in range(first, settings.epochs):
        draw = np.random.default_rng((settings.seed, epoch, 1))
        for rows in shuffled(len(images), settings, epoch):
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * schedule(step / steps)
            values = torch.from_numpy(pixels.values(variation.apply(pixels.decoded(rows), draw))).to(target_device)
            whole = step >= steps * (1 - _FULL_IMAGE_SHARE)
            patches = None if whole else variation.patches(len(rows), config.patches, draw)
            seen = None if patches is None else torch.from_numpy(patches).to(target_device)
            with autocast(target_device):
                logits = model.head(model.transformer(0, values, None, seen))
            loss = functional.cross_entropy(logits.float(), truth[rows], label_smoothing=_LABEL_SMOOTHING)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
        if checkpoint is not None:
            save_checkpoint(checkpoint, epoch + 1, parts)
        progress((epoch + 1) / settings.epochs)
    return Vit(config, {name: tensor.detach().cpu() for name, tensor in model.transformer.state_dict().items()})
