"""MaskBert: weights of the shared model are masked out, W ⊙ M (Zhao et al.; PetS §3.1).

W ⊙ M = W − W ⊙ ¬M, so the difference is −W where the mask is 0: only those positions are stored, no values.
"""

from __future__ import annotations

import numpy as np

from tidal.errors import InvalidArgument
from tidal.pets.kinds.kind import Kind
from tidal.pets.kinds.positions import has_positions, pack_positions, positions_of, read_positions, sparse_delta
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import LinearLayer, LinearTerms, SparseDelta
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array


def _read(tensors: LayerTensors) -> LinearTerms:
    if not has_positions(tensors):
        return LinearTerms()
    layer = tensors.linear
    masked = read_positions(tensors)  # ¬M
    return LinearTerms(delta=sparse_delta(masked, -layer.weight.reshape(-1)[masked], layer.shape))


def _write(terms: LinearTerms, layer: LinearLayer, storage: Storage) -> dict[str, Array]:
    if not isinstance(terms.delta, SparseDelta):
        return {}
    masked = positions_of(terms.delta, layer.shape[1])
    if not np.array_equal(terms.delta.values, -layer.weight.reshape(-1)[masked]):
        raise InvalidArgument(
            "has differences that do not set weights to 0; use the kind diff_pruning, which accepts any difference"
        )
    return pack_positions(masked, layer.weight.size)


KIND = Kind("maskbert", "masked weights (MaskBert)", (SparseDelta,), _read, _write)
