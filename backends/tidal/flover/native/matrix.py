"""Packed matrices of the native library."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from tidal.flover.native.library import large_pages
from tidal.flover.native.tiling import PREFETCHES, Tiling


class Format(IntEnum):
    """Formats of matrices, numbered as in native/kernels.hpp."""

    FULL = 0
    HALF = 1
    INT8 = 2
    INT4 = 3


class _Tiling(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in ("vectors", "rows", "prefetch", "byte_rows", "matrix_rows", "integer_matrix_rows")
    )


class _Matrix(ctypes.Structure):
    """A matrix as native/kernels.hpp declares it."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("format", "inputs", "outputs", "group")),
        ("tiling", _Tiling),
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class PackedMatrix:
    """A weight in the order in which the kernels read it, with its bias.

    Attributes:
        address: Address of the description that the native library reads.
        inputs: Number of inputs.
        outputs: Number of outputs.
        bytes: Size of the packed weight.

    Args:
        library: The native library.
        format: Format of the weight.
        weight: float32 or bfloat16 [outputs, inputs], or uint8 [outputs, groups * group]; it is copied.
        inputs: Number of inputs.
        bias: Bias [outputs]; None: no bias.
        tiling: Choices of the kernels.
        scales: Scales of integers, see native/api.cpp; None: the weight is of floats.
        group: Number of inputs that share a scale of rows; 0: the weight is of floats.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        format: Format,
        weight: torch.Tensor,
        inputs: int,
        bias: torch.Tensor | None,
        tiling: Tiling,
        *,
        scales: torch.Tensor | None = None,
        group: int = 0,
    ) -> None:
        self.inputs, self.outputs = inputs, len(weight)
        self._bias = None
        if bias is not None:
            self._bias = torch.zeros(-(-self.outputs // tiling.panel) * tiling.panel)
            self._bias[: self.outputs] = bias
        self._matrix = _Matrix(
            format, inputs, self.outputs, group, _tiling(tiling), None,
            None if self._bias is None else self._bias.data_ptr(),
        )  # fmt: skip
        self.address = ctypes.addressof(self._matrix)
        self.bytes = int(library.tidal_packed_bytes(self.address))
        self._panels = large_pages(torch.empty(self.bytes, dtype=torch.uint8))
        self._matrix.panels = self._panels.data_ptr()
        weight = weight.contiguous()
        library.tidal_pack(
            self.address, torch.get_num_threads(), weight.data_ptr(), None if scales is None else scales.data_ptr()
        )

    def retile(self, tiling: Tiling) -> None:
        """Change the choices of the kernels, except for the panel."""
        self._matrix.tiling = _tiling(tiling)


def _tiling(tiling: Tiling) -> _Tiling:
    prefetch = PREFETCHES.index(tiling.prefetch)
    matrix_rows = tiling.matrix_rows, tiling.integer_matrix_rows
    return _Tiling(tiling.panel // 16, tiling.tile_rows, prefetch, tiling.byte_rows, *matrix_rows)
