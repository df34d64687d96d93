"""A low-rank difference of a linear layer's weights (LoRA, Hu et al.), W + scale · up · down, and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidal.tasks.stored import FloatArray, Storage, StoredTensors
from tidal.tensor_file import Array


@dataclass(frozen=True, slots=True)
class LowRankDelta:
    """A weight difference scale · up · down (LoRA): up [outputs, rank], down [rank, inputs]."""

    down: FloatArray
    up: FloatArray
    scale: float


def read_low_rank(tensors: StoredTensors, outputs: int, inputs: int) -> LowRankDelta:
    """The difference of a layer of so many outputs and inputs, from the parts `down`, `up` and `scale`.

    Raises:
        InvalidArgument: a part is missing or does not fit the layer; names the tensor.
    """
    down = tensors.values("down", (None, inputs), "rank and the layer's inputs")  # A
    rank = len(down)
    if rank > min(outputs, inputs):
        raise tensors.refuse("down", f"has the rank {rank}; accepted is up to {min(outputs, inputs)}")
    up = tensors.values("up", (outputs, rank), "the layer's outputs and the rank of 'down'")  # B
    return LowRankDelta(down, up, tensors.number("scale"))  # α / rank


def write_low_rank(delta: LowRankDelta, storage: Storage) -> dict[str, Array]:
    """The parts that `read_low_rank` takes.

    Raises:
        InvalidArgument: a value cannot be stored so.
    """
    return {
        "down": storage.values(delta.down),
        "up": storage.values(delta.up),
        "scale": np.asarray([delta.scale], np.float32),
    }
