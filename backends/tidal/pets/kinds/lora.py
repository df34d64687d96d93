"""LoRA: a low-rank difference of any linear layer's weights (Hu et al.), W + scale · up · down."""

from __future__ import annotations

import numpy as np

from tidal.pets.kinds.kind import Kind, Storage
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import LinearLayer, LinearTerms, LowRankDelta
from tidal.tensor_file import Array


def _read(tensors: LayerTensors) -> LinearTerms:
    if not tensors.has("down"):
        return LinearTerms()
    outputs, inputs = tensors.linear.shape
    down = tensors.values("down", (None, inputs), "rank and the layer's inputs")  # A
    rank = len(down)
    if rank > min(outputs, inputs):
        raise tensors.refuse("down", f"has the rank {rank}; accepted is up to {min(outputs, inputs)}")
    up = tensors.values("up", (outputs, rank), "the layer's outputs and the rank of 'down'")  # B
    return LinearTerms(delta=LowRankDelta(down, up, tensors.number("scale")))  # α / rank


def _write(terms: LinearTerms, layer: LinearLayer, storage: Storage) -> dict[str, Array]:
    if not isinstance(terms.delta, LowRankDelta):
        return {}
    return {
        "down": storage.values(terms.delta.down),
        "up": storage.values(terms.delta.up),
        "scale": np.asarray([terms.delta.scale], np.float32),
    }


KIND = Kind("lora", "low-rank differences (LoRA)", (LowRankDelta,), _read, _write)
