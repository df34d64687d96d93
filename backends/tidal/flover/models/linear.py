"""Linear layers for few rows, as a decoding step has them."""

from __future__ import annotations

import torch
from torch.nn import functional

from tidal.flover.models.weights import Affine


class Linear:
    """Products of rows with one weight."""

    def __init__(self, affine: Affine) -> None:
        self._weight, self._bias = affine.weight.contiguous(), affine.bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] to [rows, outputs]."""
        return functional.linear(rows, self._weight, self._bias)
