"""The layers of a torch encoder that tasks may change."""

from __future__ import annotations

import numpy as np
import torch

from tidal.errors import Unsupported
from tidal.pets.base import BaseInfo, make_base_layers
from tidal.pets.terms import BaseLayers, FloatArray, LinearLayer, NormLayer

# Columns of a sparse difference are numbers of 16 bits.
_MOST_INPUTS = 1 << 16


def collect_layers(encoder: torch.nn.Module, width: int) -> tuple[BaseLayers, BaseInfo]:
    """Linear layers and normalisations of an encoder, and digests of all its weights.

    Args:
        encoder: without a classifier, as `AutoModel` gives it: its modules' names are the layers' paths.
        width: of the pooled vector.

    Raises:
        Unsupported: it has no linear layer, or one with more inputs than a task can name.
    """
    linear: dict[str, LinearLayer] = {}
    norm: dict[str, NormLayer] = {}
    for path, module in encoder.named_modules():
        if isinstance(module, torch.nn.Linear):
            bias = module.bias if module.bias is not None else torch.zeros(module.out_features)
            linear[path] = LinearLayer(array_of(module.weight), array_of(bias))
            if module.in_features > _MOST_INPUTS:
                raise Unsupported(f"layer '{path}' has {module.in_features} inputs; accepted are up to {_MOST_INPUTS}")
        elif isinstance(module, torch.nn.LayerNorm) and module.weight is not None:
            bias = module.bias if module.bias is not None else torch.zeros_like(module.weight)
            norm[path] = NormLayer(array_of(module.weight), array_of(bias))
    if not linear:
        raise Unsupported(f"{type(encoder).__name__} has no linear layer that a task could change")
    taken = {f"{path}.{part}" for path in (*linear, *norm) for part in ("weight", "bias")}
    frozen = {name: array_of(weight) for name, weight in encoder.named_parameters() if name not in taken}
    return make_base_layers(linear, norm, frozen, width)


def array_of(tensor: torch.Tensor) -> FloatArray:
    """A tensor's values as float32, in memory of their own."""
    return np.array(tensor.detach().to(torch.float32).cpu().numpy())
