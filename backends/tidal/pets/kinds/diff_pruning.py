"""Diff pruning: a sparse difference of the weights (Guo et al.; PetS §3.1, X·(W + δ) = X·W + X·δ)."""

from __future__ import annotations

from tidal.pets.kinds.kind import Kind
from tidal.pets.kinds.positions import pack_positions, positions_of, read_positions, sparse_delta
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import LinearLayer, LinearTerms, SparseDelta
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array

DIFFERENCES = "differences"


def read_difference(tensors: LayerTensors) -> SparseDelta | None:
    """Read a layer's sparse difference: the part `differences` with `gaps` or `bits`.

    Args:
        tensors: Stored tensors of the layer.

    Returns:
        The difference, or None if the layer has none.

    Raises:
        InvalidArgument: A part is missing, or does not fit the layer or the other part.
    """
    if not tensors.has(DIFFERENCES):
        return None
    positions = read_positions(tensors)
    values = tensors.values(DIFFERENCES, (len(positions),), "a value for each of its places")
    return sparse_delta(positions, values, tensors.linear.shape)


def write_difference(terms: LinearTerms, layer: LinearLayer, storage: Storage) -> dict[str, Array]:
    """Make the parts that `read_difference` reads.

    Args:
        terms: Terms of the layer.
        layer: The base's layer.
        storage: Storage of the values.
    """
    if not isinstance(terms.delta, SparseDelta):
        return {}
    positions = pack_positions(positions_of(terms.delta, layer.shape[1]), layer.weight.size)
    return {DIFFERENCES: storage.values(terms.delta.values), **positions}


def _read(tensors: LayerTensors) -> LinearTerms:
    return LinearTerms(delta=read_difference(tensors))


KIND = Kind("diff_pruning", "sparse differences (diff pruning)", (SparseDelta,), _read, write_difference)
