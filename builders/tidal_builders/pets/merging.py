"""A task's full model: the base's weights with the task's differences added."""

from __future__ import annotations

from tidal.errors import Unsupported
from tidal.pets.merging import dense
from tidal.pets.terms import BaseLayers, FloatArray, TaskTerms


def merged_weights(terms: TaskTerms, base: BaseLayers) -> dict[str, FloatArray]:
    """The weights that a task changes, with its changes, by name; without its classifier.

    Args:
        terms: Terms of the task.
        base: Layers of the base.

    Raises:
        Unsupported: The task has adapters, which cannot be merged into weights.
    """
    merged: dict[str, FloatArray] = {}
    for path, change in terms.linear.items():
        if change.bottleneck is not None:
            raise Unsupported(f"'{path}' has an adapter, which cannot be merged into weights")
        layer = base.linear[path]
        if change.delta is not None:
            merged[f"{path}.weight"] = layer.weight + dense(change.delta, layer.shape)
        if change.bias is not None:
            merged[f"{path}.bias"] = layer.bias + change.bias
    for path, norm in terms.norm.items():
        merged[f"{path}.weight"], merged[f"{path}.bias"] = norm.weight, norm.bias
    return merged
