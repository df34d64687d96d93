"""Low-rank update of a linear layer's weights (LoRA, Hu et al.), W + scale · up · down, and its storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidal.tasks.stored import FloatArray, Storage, StoredTensors
from tidal.tensor_file import Array


@dataclass(frozen=True, slots=True)
class LowRankDelta:
    """A weight update scale · up · down (LoRA).

    Attributes:
        down: Matrix A, of shape [rank, inputs].
        up: Matrix B, of shape [outputs, rank].
        scale: Factor α / rank.
    """

    down: FloatArray
    up: FloatArray
    scale: float


def read_low_rank(tensors: StoredTensors, outputs: int, inputs: int) -> LowRankDelta:
    """Read the update of a layer from the parts `down`, `up` and `scale`.

    Args:
        tensors: Stored tensors of the layer.
        outputs: Number of outputs of the layer.
        inputs: Number of inputs of the layer.

    Raises:
        InvalidArgument: A part is missing or does not fit the layer; names the tensor.
    """
    down = tensors.values("down", (None, inputs), "rank and the layer's inputs")  # A
    rank = len(down)
    if rank > min(outputs, inputs):
        raise tensors.refuse("down", f"has rank {rank}; accepted: up to {min(outputs, inputs)}")
    up = tensors.values("up", (outputs, rank), "the layer's outputs and the rank of 'down'")  # B
    return LowRankDelta(down, up, tensors.number("scale"))  # α / rank


def write_low_rank(delta: LowRankDelta, storage: Storage) -> dict[str, Array]:
    """Return the parts that `read_low_rank` reads.

    Args:
        delta: The update.
        storage: Storage format of the values.

    Raises:
        InvalidArgument: A value cannot be stored in this format.
    """
    return {
        "down": storage.values(delta.down),
        "up": storage.values(delta.up),
        "scale": np.asarray([delta.scale], np.float32),
    }
