"""Trains a small vision transformer from nothing, where no pretrained one is at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tidal_builders.otas.training.images import LabelledImages, Pixels
from tidal_builders.otas.training.settings import Settings
from tidal_builders.otas.training.train import fast, schedule
from tidal_builders.otas.transformer import TransformerModel
from tidal_builders.otas.vit import Vit, VitConfig

_LABEL_SMOOTHING = 0.1


def pretrain(
    config: VitConfig,
    images: LabelledImages,
    settings: Settings,
    progress: Callable[[float], None] = lambda _: None,
) -> Vit:
    """Train a transformer to tell classes apart, and give it without the head that it did that with.

    Args:
        config: its form.
        images: with the classes.
        settings: of the training; `profiled` is not used.
        progress: told the share that is done, after every epoch.
    """
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = TransformerModel(config).to(place)
        head = nn.Linear(config.width, len(images.labels)).to(place)
    pixels, truth = Pixels(images, config.image), torch.from_numpy(images.truth).to(place)
    optimiser = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=settings.rate, weight_decay=0.05)
    steps, step = settings.epochs * -(-len(images) // settings.batch), 0
    for epoch in range(settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(images))
        for begin in range(0, len(images), settings.batch):
            rows = order[begin : begin + settings.batch]
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * schedule(step / steps)
            with fast(place):
                logits = head(model(0, torch.from_numpy(pixels(rows)).to(place)))
            loss = functional.cross_entropy(logits.float(), truth[rows], label_smoothing=_LABEL_SMOOTHING)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)
            optimiser.step()
            step += 1
        progress((epoch + 1) / settings.epochs)
    return Vit(config, {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()})
