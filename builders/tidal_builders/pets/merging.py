"""A task's own full model: the base's weights with the task's differences added."""

from __future__ import annotations

import numpy as np

from tidal.errors import Unsupported
from tidal.pets.terms import BaseLayers, FloatArray, LinearTerms, LowRankDelta, SparseDelta, TaskTerms


def merged_weights(terms: TaskTerms, base: BaseLayers) -> dict[str, FloatArray]:
    """The weights that a task changes as they are afterwards, by name, without its classifier.

    Raises:
        Unsupported: it has adapters, which no weight can hold.
    """
    merged: dict[str, FloatArray] = {}
    for path, change in terms.linear.items():
        if change.bottleneck is not None:
            raise Unsupported(f"'{path}' has an adapter, which cannot be merged into weights")
        layer = base.linear[path]
        if change.delta is not None:
            merged[f"{path}.weight"] = layer.weight + weight_difference(change, layer.shape)
        if change.bias is not None:
            merged[f"{path}.bias"] = layer.bias + change.bias
    for path, norm in terms.norm.items():
        merged[f"{path}.weight"], merged[f"{path}.bias"] = norm.weight, norm.bias
    return merged


def weight_difference(change: LinearTerms, shape: tuple[int, int]) -> FloatArray:
    """A task's difference of a weight matrix [outputs, inputs], written out."""
    difference = np.zeros(shape, np.float32)
    if isinstance(change.delta, LowRankDelta):
        difference += np.float32(change.delta.scale) * (change.delta.up @ change.delta.down)
    elif isinstance(change.delta, SparseDelta):
        rows = np.repeat(np.arange(shape[0]), np.diff(change.delta.starts.astype(np.int64)))
        difference[rows, change.delta.columns] = change.delta.values
    return difference
