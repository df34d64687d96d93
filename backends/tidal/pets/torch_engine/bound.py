"""A batch on the device: which operators add what to which rows of the shared products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

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
    """A group's operator, its layers by number, and its rows in the batch; None: all."""

    operator: Operator
    positions: Mapping[int, int]
    rows: torch.Tensor | None
    reads_outputs: bool

    def add(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> None:
        """Add to the rows of a product, in place; see `Batch.add_terms`."""
        own = None
        for site in sites:
            position = self.positions.get(site.number)
            if position is None:
                continue
            target = product[..., site.first : site.first + site.outputs]
            if own is None or self.reads_outputs:
                own = target if self.reads_outputs else source
                if self.rows is not None:
                    own = own.index_select(0, self.rows)
            delta = self.operator.delta(position, site, own)
            if self.rows is None:
                target.add_(delta)
            else:
                target.index_add_(0, self.rows, delta)


class Lanes(Protocol):
    """Where parts of a batch run."""

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run independent works by the number of their part; what follows begins when all are done."""


class SequentialLanes:
    """One part after the other."""

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run works in their order."""
        for work in works.values():
            work()


@dataclass(frozen=True, slots=True)
class BoundBatch:
    """A batch on the device.

    Attributes:
        ids: [rows, tokens].
        lengths: [rows].
        types: [rows, tokens], or None.
        norms: [normalisations, 2, rows] row numbers of every row's weights and biases; None: all have the base's.
        matrices: of the pools.
        parts: groups that run one after another, of parts that run beside each other.
        lanes: where parts run.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    types: torch.Tensor | None
    norms: torch.Tensor | None
    matrices: Matrices
    parts: Sequence[Sequence[BoundGroup]]
    lanes: Lanes

    def add_terms(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """A shared product with the rows' terms, which are added in place.

        Args:
            sites: the layers that the product is of.
            source: [rows, tokens, inputs].
            product: [rows, tokens, all outputs].
        """
        numbers = {site.number for site in sites}
        works = {
            position: partial(_add_all, part, sites, source, product)
            for position, part in enumerate(self.parts)
            if any(not numbers.isdisjoint(group.positions) for group in part)
        }
        if len(works) == 1:
            next(iter(works.values()))()
        elif works:
            self.lanes.run(works)
        return product


def _add_all(groups: Sequence[BoundGroup], sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> None:
    for group in groups:
        group.add(sites, source, product)


# Makes the product of a part's sparse group from its addresses [starts, columns, values][layers, rows].
MakeProduct = Callable[[int, Sequence[torch.Tensor]], SparseProduct]


def bind(
    layout: Layout, numbers: torch.Tensor, matrices: Matrices, make_product: MakeProduct, lanes: Lanes
) -> BoundBatch:
    """A batch whose numbers are on the device: views of them, and nothing that depends on what they are.

    Args:
        layout: of the plan.
        numbers: int64, of the plan.
        matrices: of the pools when the plan was made.
        make_product: gives the sparse product of a part.
        lanes: where parts run.
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
    return BoundGroup(operator, positions, rows, group.type == "bottleneck")
