"""The operators (PetS §3.4.3): one type of terms for many rows at once, each row with its own task's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from tidal.pets.torch_engine.pools import ZERO_ROW
from tidal.pets.torch_engine.tasks import SCALAR

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh,
    "gelu_tanh": lambda tensor: F.gelu(tensor, approximate="tanh"),
}  # fmt: skip

# Matrices of the pools [rows, length], by length.
Matrices = Mapping[int, torch.Tensor]


class Site(NamedTuple):
    """A linear layer that tasks may change: columns `first` to `first + outputs` of a shared product.

    Attributes:
        number: Number of the layer.
        first: First column of the layer in the product.
        outputs: Number of outputs.
        inputs: Number of inputs.
    """

    number: int
    first: int
    outputs: int
    inputs: int


class Operator(Protocol):
    """Computes one type of terms for some rows."""

    def delta(self, position: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        """Compute what is added to the rows' outputs.

        Args:
            position: Index of the layer among the operator's layers.
            site: The layer.
            source: Inputs of the rows [rows, tokens, inputs]; for bottlenecks their outputs [rows, tokens, outputs].

        Returns:
            [rows, tokens, outputs].
        """


class SparseProduct(Protocol):
    """Computes Δ·x [rows, outputs, tokens] of every row at a layer, from x [rows, inputs, tokens]."""

    def __call__(self, position: int, site: Site, tokens: torch.Tensor) -> torch.Tensor:
        """Compute the product; `position` is the index of the layer among the operator's layers."""


class SparseOperator:
    """Sparse differences."""

    def __init__(self, product: SparseProduct) -> None:
        self._product = product
        self._transposed: tuple[torch.Tensor, torch.Tensor] | None = None

    def delta(self, position: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        """See `Operator`."""
        # Layers with the same input are consecutive.
        if self._transposed is None or self._transposed[0] is not source:
            self._transposed = source, source.transpose(1, 2).contiguous()
        return self._product(position, site, self._transposed[1]).transpose(1, 2)


class BiasOperator:
    """Biases.

    Args:
        rows: Row numbers, int64 [layers, rows].
        matrices: Matrices of the pools by the length of their rows.
    """

    def __init__(self, rows: torch.Tensor, matrices: Matrices) -> None:
        self._rows, self._matrices = rows, matrices

    def delta(self, position: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        """See `Operator`."""
        bias = self._matrices[site.outputs].index_select(0, self._rows[position])
        return bias[:, None].expand(-1, source.shape[1], -1)


class LowRankOperator:
    """Low-rank differences.

    Args:
        rows: Row numbers of down and of up, int64 [layers, rows, rank] each.
        matrices: Matrices of the pools by the length of their rows.
    """

    def __init__(self, rows: Sequence[torch.Tensor], matrices: Matrices) -> None:
        self._down, self._up = rows
        self._matrices = matrices

    def delta(self, position: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        """See `Operator`."""
        down = _gathered(self._matrices[site.inputs], self._down[position])
        return source @ down.transpose(1, 2) @ _gathered(self._matrices[site.outputs], self._up[position])


class BottleneckOperator:
    """Bottlenecks.

    Args:
        activation: Activation between both products.
        rows: Row numbers of down, of up and of the inner bias, int64 [layers, rows, rank] each.
        after: Row numbers of the outer bias, int64 [layers, rows].
        matrices: Matrices of the pools by the length of their rows.
    """

    def __init__(
        self,
        activation: Callable[[torch.Tensor], torch.Tensor],
        rows: Sequence[torch.Tensor],
        after: torch.Tensor,
        matrices: Matrices,
    ) -> None:
        self._activation = activation
        self._down, self._up, self._gate = rows
        self._after, self._matrices = after, matrices

    def delta(self, position: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        """See `Operator`."""
        matrix = self._matrices[site.outputs]
        gate = _gathered(self._matrices[SCALAR], self._gate[position]).transpose(1, 2)
        inner = torch.baddbmm(gate, source, _gathered(matrix, self._down[position]).transpose(1, 2))
        after = matrix.index_select(0, self._after[position])[:, None]
        return torch.baddbmm(after, self._activation(inner), _gathered(matrix, self._up[position]))


def consecutive(first: Sequence[torch.Tensor], rank: torch.Tensor, most: int) -> list[torch.Tensor]:
    """Expand ranges of row numbers.

    Args:
        first: First row numbers, [...] each.
        rank: Number of rows of each range, [...].
        most: Length of the result's last dimension.

    Returns:
        For each of `first`, row numbers [..., most]; beyond a range the row of zeros.
    """
    positions = torch.arange(most, device=rank.device)
    held = positions < rank[..., None]
    return [torch.where(held, numbers[..., None] + positions, ZERO_ROW) for numbers in first]


def _gathered(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows [n, rank] of a matrix, [n, rank, length]."""
    return matrix.index_select(0, rows.reshape(-1)).view(*rows.shape, matrix.shape[1])
