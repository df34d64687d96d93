"""Places in a matrix in few bytes: gaps between them, or one bit for every place, whichever is shorter.

A matrix is read row by row. A gap's byte says how many places to skip before the next one that is meant; 255 skips 255
places and means none. At 95 % sparsity that is 0.4 bits a weight, at 99.5 % 0.06; from 1 in 8 on the bits are shorter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import FloatArray, SparseDelta
from tidal.tensor_file import Array

_SKIP = 255
_GAPS, _BITS = "gaps", "bits"

Positions = npt.NDArray[np.int64]


def pack_positions(positions: Positions, size: int) -> dict[str, Array]:
    """The part `gaps` or `bits`, uint8.

    Args:
        places: [n] ascending, each below `size`.
        size: of the matrix in values.
    """
    skipped = np.diff(positions, prepend=-1) - 1
    escapes = skipped // _SKIP
    if len(positions) + int(escapes.sum()) > (size + 7) // 8:
        mask = np.zeros(size, bool)
        mask[positions] = True
        return {_BITS: np.packbits(mask)}
    gaps = np.full(len(positions) + int(escapes.sum()), _SKIP, np.uint8)
    gaps[np.cumsum(escapes + 1) - 1] = skipped % _SKIP
    return {_GAPS: gaps}


def has_positions(tensors: LayerTensors) -> bool:
    """Whether a layer has places stored."""
    return tensors.has(_BITS) or tensors.has(_GAPS)


def read_positions(tensors: LayerTensors) -> Positions:
    """The places of a linear layer's weights that `gaps` or `bits` mean, int64 [n] ascending.

    Raises:
        InvalidArgument: there is neither, or it reaches beyond the layer.
    """
    outputs, inputs = tensors.linear.shape
    size = outputs * inputs
    if tensors.has(_BITS):
        packed = tensors.octets(_BITS)
        if len(packed) != (size + 7) // 8:
            raise tensors.refuse(_BITS, f"has {len(packed)} bytes; a bit for each of {outputs} x {inputs} weights is "
                                 f"{(size + 7) // 8}")  # fmt: skip
        bits = np.unpackbits(packed)
        if bits[size:].any():
            raise tensors.refuse(_BITS, f"has bits beyond the {size} weights of its layer")
        return np.flatnonzero(bits)
    gaps = tensors.octets(_GAPS)
    # Each byte goes on by a place at least: so nothing longer can fit, and sums stay small.
    reached = np.cumsum(np.where(gaps == _SKIP, _SKIP, gaps.astype(np.int64) + 1)) if len(gaps) <= size else None
    if reached is None or (len(reached) and reached[-1] > size):
        raise tensors.refuse(_GAPS, f"reaches beyond the {size} weights of its layer")
    positions: Positions = reached[gaps != _SKIP] - 1
    return positions


def sparse_delta(positions: Positions, values: FloatArray, shape: tuple[int, int]) -> SparseDelta:
    """Values [n] at ascending places of a matrix, in compressed rows."""
    outputs, inputs = shape
    rows = positions // inputs
    starts = np.zeros(outputs + 1, np.uint32)
    starts[1:] = np.cumsum(np.bincount(rows, minlength=outputs))
    return SparseDelta(starts, (positions - rows * inputs).astype(np.uint16), np.ascontiguousarray(values, np.float32))


def positions_of(delta: SparseDelta, inputs: int) -> Positions:
    """Where a sparse difference has its values, int64 [n] ascending; `inputs` is the length of a row."""
    counts = np.diff(delta.starts.astype(np.int64))
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts) * inputs + delta.columns
