"""Positions in a matrix in few bytes: gaps between them, or one bit for every position, whichever is shorter.

A matrix is read row by row. A byte of `gaps` is the number of positions to skip before the next one; 255 skips 255
positions and selects none. At 95 % sparsity this takes 0.4 bits per weight, at 99.5 % 0.06; from 1 in 8 on bits are
shorter.
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
    """Pack positions into the part `gaps` or `bits`, uint8.

    Args:
        positions: Ascending positions, each below `size`, int64 [n].
        size: Number of values of the matrix.
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
    """Whether positions are stored for a layer."""
    return tensors.has(_BITS) or tensors.has(_GAPS)


def read_positions(tensors: LayerTensors) -> Positions:
    """Read the positions of a linear layer's weights from `gaps` or `bits`.

    Args:
        tensors: Stored tensors of the layer.

    Returns:
        Ascending positions, int64 [n].

    Raises:
        InvalidArgument: Both parts are missing, or the positions exceed the layer.
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
    # Each byte advances by at least one position: nothing longer can fit, and sums stay small.
    reached = np.cumsum(np.where(gaps == _SKIP, _SKIP, gaps.astype(np.int64) + 1)) if len(gaps) <= size else None
    if reached is None or (len(reached) and reached[-1] > size):
        raise tensors.refuse(_GAPS, f"reaches beyond the {size} weights of its layer")
    positions: Positions = reached[gaps != _SKIP] - 1
    return positions


def sparse_delta(positions: Positions, values: FloatArray, shape: tuple[int, int]) -> SparseDelta:
    """Make a sparse difference of values at positions of a matrix.

    Args:
        positions: Ascending positions, int64 [n].
        values: Values at the positions [n].
        shape: Outputs and inputs of the matrix.
    """
    outputs, inputs = shape
    rows = positions // inputs
    starts = np.zeros(outputs + 1, np.uint32)
    starts[1:] = np.cumsum(np.bincount(rows, minlength=outputs))
    return SparseDelta(starts, (positions - rows * inputs).astype(np.uint16), np.ascontiguousarray(values, np.float32))


def positions_of(delta: SparseDelta, inputs: int) -> Positions:
    """Positions of a sparse difference's values.

    Args:
        delta: The difference.
        inputs: Length of a row.

    Returns:
        Ascending positions, int64 [n].
    """
    counts = np.diff(delta.starts.astype(np.int64))
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts) * inputs + delta.columns
