"""LoRA: a low-rank difference of any linear layer's weights (Hu et al.), W + scale · up · down."""

from __future__ import annotations

from tidal.pets.kinds.kind import Kind
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import LinearLayer, LinearTerms, LowRankDelta
from tidal.tasks.low_rank import read_low_rank, write_low_rank
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array


def _read(tensors: LayerTensors) -> LinearTerms:
    if not tensors.has("down"):
        return LinearTerms()
    return LinearTerms(delta=read_low_rank(tensors, *tensors.linear.shape))


def _write(terms: LinearTerms, layer: LinearLayer, storage: Storage) -> dict[str, Array]:
    if not isinstance(terms.delta, LowRankDelta):
        return {}
    return write_low_rank(terms.delta, storage)


KIND = Kind("lora", "low-rank differences (LoRA)", (LowRankDelta,), _read, _write)
