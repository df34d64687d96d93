"""A batch on the device: which operators add what to which rows of the shared products."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch

from tidal.pets.torch_engine.operators import (
    ACTIVATIONS,
    BiasOperator,
    BottleneckOperator,
    LowRankOperator,
    Matrices,
    Operator,
    Site,
    SparseOperator,
    SparseProduct,
    consecutive,
)
from tidal.pets.torch_engine.plan import Group, Layout


@dataclass(frozen=True, slots=True)
class BoundGroup:
    """A group of rows with the same type of terms.

    Attributes:
        operator: Operator of the group.
        positions: Index of each linear layer among the group's layers, by the layer's number.
        rows: Rows of the batch, int64 [rows]; None: all rows.
        reads: Input of the operator: the layer's inputs, its outputs, or their normalised sum with the residual.
    """

    operator: Operator
    positions: Mapping[int, int]
    rows: torch.Tensor | None
    reads: Literal["inputs", "outputs", "normalised"]

    def add(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> None:
        """Add to the rows of a product, in place; `source` is what the operator reads, unless that is the product."""
        own = None
        for site in sites:
            position = self.positions.get(site.number)
            if position is None:
                continue
            target = product[..., site.first : site.first + site.outputs]
            if own is None or self.reads == "outputs":
                own = target if self.reads == "outputs" else source
                if self.rows is not None:
                    own = own.index_select(0, self.rows)
            delta = self.operator.delta(position, site, own)
            if self.rows is None:
                target.add_(delta)
            else:
                target.index_add_(0, self.rows, delta)


_READS: Mapping[str, Literal["outputs", "normalised"]] = {"bottleneck": "outputs", "after_norm": "normalised"}


class Lanes(Protocol):
    """Runs the parts of a batch."""

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run independent work by the number of its part; later work begins when all of it is done."""


class SequentialLanes:
    """Runs one part after another."""

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run the work of all parts in their order."""
        for work in works.values():
            work()


@dataclass(frozen=True, slots=True)
class BoundBatch:
    """A batch on the device.

    Attributes:
        ids: Token ids [rows, tokens].
        lengths: Number of real tokens [rows].
        types: Token types [rows, tokens], or None.
        norms: Row numbers of every row's weights and biases, [normalisations, 2, rows]; None: all rows use the base's.
        matrices: Matrices of the pools by the length of their rows.
        parts: Groups of each part; groups of a part run one after another, parts may run concurrently.
        lanes: Runs the parts.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    types: torch.Tensor | None
    norms: torch.Tensor | None
    matrices: Matrices
    parts: Sequence[Sequence[BoundGroup]]
    lanes: Lanes

    def add_terms(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Add the rows' terms to a shared product, in place.

        Args:
            sites: Layers that the product is of.
            source: Inputs of the layers, [rows, tokens, inputs].
            product: Shared product, [rows, tokens, outputs of all sites].

        Returns:
            The product.
        """
        self._add(sites, ("inputs", "outputs"), lambda: source, product)
        return product

    def add_after_norm(
        self, sites: Sequence[Site], normalise: Callable[[torch.Tensor], torch.Tensor], product: torch.Tensor
    ) -> torch.Tensor:
        """Add the rows' terms that read the normalised sum of a product and the residual, in place.

        Args:
            sites: Layers that the product is of.
            normalise: Computes the normalised sum from the product; called only if a row has such a term.
            product: Product with all other terms, [rows, tokens, outputs].

        Returns:
            The product.
        """
        self._add(sites, ("normalised",), lambda: normalise(product), product)
        return product

    def _add(
        self,
        sites: Sequence[Site],
        reads: Collection[str],
        source: Callable[[], torch.Tensor],
        product: torch.Tensor,
    ) -> None:
        numbers = {site.number for site in sites}
        found = {
            position: [group for group in part if group.reads in reads and not numbers.isdisjoint(group.positions)]
            for position, part in enumerate(self.parts)
        }
        if not any(found.values()):
            return
        own = source()
        works = {position: partial(_add_all, part, sites, own, product) for position, part in found.items() if part}
        if len(works) == 1:
            next(iter(works.values()))()
        else:
            self.lanes.run(works)


def _add_all(groups: Sequence[BoundGroup], sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> None:
    for group in groups:
        group.add(sites, source, product)


# Makes the sparse product of a part from the addresses [starts, columns, values][layers, rows].
MakeProduct = Callable[[int, Sequence[torch.Tensor]], SparseProduct]


def bind(
    layout: Layout, numbers: torch.Tensor, matrices: Matrices, make_product: MakeProduct, lanes: Lanes
) -> BoundBatch:
    """Make a batch of numbers on the device: views of them, independent of their values.

    Args:
        layout: Layout of the plan.
        numbers: Numbers of the plan on the device, int64.
        matrices: Matrices of the pools when the plan was made.
        make_product: Makes the sparse product of a part.
        lanes: Runs the parts.
    """
    reader = _Reader(numbers)
    rows, tokens = layout.rows, layout.tokens
    ids, lengths = reader.take(rows, tokens), reader.take(rows)
    types = reader.take(rows, tokens) if layout.types else None
    norms = reader.take(layout.norms, 2, rows) if layout.norms else None
    parts = [
        [_bind(group, reader, matrices, partial(make_product, position)) for group in part]
        for position, part in enumerate(layout.parts)
    ]
    return BoundBatch(ids, lengths, types, norms, matrices, parts, lanes)


class _Reader:
    def __init__(self, numbers: torch.Tensor) -> None:
        self._numbers, self._read = numbers, 0

    def take(self, *shape: int) -> torch.Tensor:
        size = 1
        for dimension in shape:
            size *= dimension
        self._read += size
        return self._numbers[self._read - size : self._read].view(shape)


def _bind(
    group: Group, reader: _Reader, matrices: Matrices, make_product: Callable[[Sequence[torch.Tensor]], SparseProduct]
) -> BoundGroup:
    rows = None if group.every else reader.take(group.rows)
    shape = len(group.layers), group.rows
    operator: Operator
    if group.type == "sparse":
        operator = SparseOperator(make_product([reader.take(*shape) for _ in range(3)]))
    elif group.type == "bias":
        operator = BiasOperator(reader.take(*shape), matrices)
    else:
        rank, *first = (reader.take(*shape) for _ in range(3 if group.type == "low_rank" else 4))
        expanded = consecutive(first, rank, group.rank)
        if group.activation is None:
            operator = LowRankOperator(expanded, matrices)
        else:
            operator = BottleneckOperator(ACTIVATIONS[group.activation], expanded, reader.take(*shape), matrices)
    positions = {layer: position for position, layer in enumerate(group.layers)}
    return BoundGroup(operator, positions, rows, _READS.get(group.type, "inputs"))
