"""Vision transformers with random weights, small enough to create in a test, without timm."""

from __future__ import annotations

from typing import Any

import torch

from tidal.otas.manifest import ImageConfig
from tidal_builders.otas.transformer import TransformerModel
from tidal_builders.otas.vit import Vit, VitConfig


def tiny_config(*, size: int = 16, channels: int = 3, **changed: Any) -> VitConfig:
    """Return a configuration of two layers of width 8, with 16 patches of 4 x 4 pixels and a class token."""
    image = ImageConfig(
        channels=channels,
        height=size,
        width=size,
        crop_pct=1.0,
        crop_mode="center",
        interpolation="bicubic",
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
    )
    fields = {"width": 8, "layers": 2, "heads": 2, "inner": 16, "patch": (4, 4)} | changed
    return VitConfig(architecture="tiny", image=image, **fields)


def tiny_vit(seed: int = 0, **changed: Any) -> Vit:
    """Return random weights for which images give different features; see `tiny_config`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TransformerModel(tiny_config(**changed))
        tensors = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    return Vit(model.config, tensors)
