"""An encoder's weights from its folder, with one task merged into them if it is a copy for that task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tidal.errors import InvalidArgument
from tidal.pets.engine.checks import checked_terms
from tidal.pets.engine.description import WEIGHTS_FILE, Description, read_description
from tidal.pets.merging import dense
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.pets.torch_engine.pools import RowPools
from tidal.pets.torch_engine.tasks import Numbers
from tidal.tensor_file import map_tensors

Weights = dict[str, FloatArray]


def read_weights(folder: Path, merged: TaskTerms | None = None) -> tuple[Description, Weights]:
    """Read an encoder that `export_encoder` wrote without a graph.

    Args:
        folder: Folder with `encoder.safetensors` and `encoder.json`.
        merged: Task whose differences and normalisations are merged into the weights, or None.

    Raises:
        InvalidArgument: The files cannot be read, or `merged` does not fit them.
    """
    description = read_description(folder)
    arrays = map_tensors(folder / WEIGHTS_FILE)
    if description.form is None:
        raise InvalidArgument(
            f"{folder} has no encoder for torch: encoder.json has no form; export it with engine torch or tensorrt"
        )
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    if merged is not None:
        _merge(weights, description, checked_terms(merged, description))
    return description, weights


def as_tensors(weights: Weights) -> dict[str, torch.Tensor]:
    """The weights as tensors in the same memory."""
    return {name: torch.from_numpy(array) for name, array in weights.items()}


def put_norms(pools: RowPools, description: Description, weights: Weights) -> Numbers:
    """Store the base's own normalisations in the pools.

    Args:
        pools: Pools that store them.
        description: Layers of the encoder.
        weights: Weights of the encoder by name.

    Returns:
        Row numbers of weights and biases, int64 [normalisations, 2].
    """
    numbers = [
        [pools.put(spec.width, weights[name][None]) for name in (spec.weight, spec.bias)] for spec in description.norm
    ]
    return np.array(numbers, np.int64)


def _merge(weights: Weights, description: Description, terms: TaskTerms) -> None:
    for spec in description.linear:
        own = terms.linear.get(spec.path)
        rows = slice(spec.first, spec.first + spec.outputs)
        if own is not None and own.delta is not None:
            weights[spec.weight][rows] += dense(own.delta, (spec.outputs, spec.inputs))
        if own is not None and own.bias is not None:
            weights[spec.bias][rows] += own.bias
    for norm in description.norm:
        affine = terms.norm.get(norm.path)
        if affine is not None:
            weights[norm.weight], weights[norm.bias] = affine.weight.copy(), affine.bias.copy()
