"""A batch's terms on the device, and the operations that add them to the shared products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from tidal.pets.torch_engine.plan import Group, Layout
from tidal.pets.torch_engine.tasks import SCALAR

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh,
    "gelu_tanh": lambda tensor: F.gelu(tensor, approximate="tanh"),
}  # fmt: skip

Matrices = Mapping[int, torch.Tensor]


class Site(NamedTuple):
    """A linear layer that tasks may change: columns `first` to `first + outputs` of a shared product."""

    number: int
    first: int
    outputs: int
    inputs: int


class SparseProduct(Protocol):
    """Δ·x [rows, outputs, tokens] of every row of a group, from x [rows, inputs, tokens] at a site of the group."""

    def __call__(self, place: int, site: Site, tokens: torch.Tensor) -> torch.Tensor:
        """See above; `place` is that of the site in the group's layers."""


class _Terms(Protocol):
    """One type of terms of a group's rows."""

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        """The rows' inputs [rows, tokens, inputs] as `delta` takes them, for all sites that share them."""

    def delta(self, place: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        """What is added to the rows' outputs, [rows, tokens, outputs]."""


class _Sparse:
    def __init__(self, product: SparseProduct) -> None:
        self._product = product

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source.transpose(1, 2).contiguous()

    def delta(self, place: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        return self._product(place, site, source).transpose(1, 2)


class _Bias:
    def __init__(self, rows: torch.Tensor, matrices: Matrices) -> None:
        self._rows, self._matrices = rows, matrices

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source

    def delta(self, place: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        bias = self._matrices[site.outputs].index_select(0, self._rows[place])
        return bias[:, None].expand(-1, source.shape[1], -1)


class _LowRank:
    def __init__(self, down: torch.Tensor, up: torch.Tensor, matrices: Matrices) -> None:
        self._down, self._up, self._matrices = down, up, matrices

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source

    def delta(self, place: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        down = _gathered(self._matrices[site.inputs], self._down[place])
        return source @ down.transpose(1, 2) @ _gathered(self._matrices[site.outputs], self._up[place])


class _Bottleneck:
    def __init__(
        self,
        activation: str,
        down: torch.Tensor,
        up: torch.Tensor,
        gate: torch.Tensor,
        after: torch.Tensor,
        matrices: Matrices,
    ) -> None:
        self._activation = ACTIVATIONS[activation]
        self._down, self._up, self._gate, self._after = down, up, gate, after
        self._matrices = matrices

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source

    def delta(self, place: int, site: Site, source: torch.Tensor) -> torch.Tensor:
        matrix = self._matrices[site.outputs]
        gate = _gathered(self._matrices[SCALAR], self._gate[place]).transpose(1, 2)
        inner = torch.baddbmm(gate, source, _gathered(matrix, self._down[place]).transpose(1, 2))
        after = matrix.index_select(0, self._after[place])[:, None]
        return torch.baddbmm(after, self._activation(inner), _gathered(matrix, self._up[place]))


@dataclass(frozen=True, slots=True)
class _Bound:
    """A group, its rows in the batch (None: all), and its terms."""

    places: Mapping[int, int]
    rows: torch.Tensor | None
    terms: _Terms
    reads_outputs: bool

    def add(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> None:
        prepared = None
        for site in sites:
            place = self.places.get(site.number)
            if place is None:
                continue
            target = product[..., site.first : site.first + site.outputs]
            if prepared is None or self.reads_outputs:
                prepared = self.terms.prepare(self._own(target if self.reads_outputs else source))
            delta = self.terms.delta(place, site, prepared)
            if self.rows is None:
                target.add_(delta)
            else:
                target.index_add_(0, self.rows, delta)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.rows is None else tensor.index_select(0, self.rows)


class Lanes(Protocol):
    """Where parts of a batch run."""

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run independent works by the number of their part; what follows begins when all are done."""


class InTurn:
    """One part after the other."""

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run works in their order."""
        for work in works.values():
            work()


@dataclass(frozen=True, slots=True)
class Batch:
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
    parts: Sequence[Sequence[_Bound]]
    lanes: Lanes

    def add_terms(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> None:
        """Add the rows' terms to a shared product, in place.

        Args:
            sites: the layers that the product is of.
            source: [rows, tokens, inputs].
            product: [rows, tokens, all outputs].
        """
        numbers = {site.number for site in sites}
        works = {
            place: _Work(part, sites, source, product)
            for place, part in enumerate(self.parts)
            if any(not numbers.isdisjoint(group.places) for group in part)
        }
        if len(works) == 1:
            next(iter(works.values()))()
        elif works:
            self.lanes.run(works)


@dataclass(frozen=True, slots=True)
class _Work:
    part: Sequence[_Bound]
    sites: Sequence[Site]
    source: torch.Tensor
    product: torch.Tensor

    def __call__(self) -> None:
        for group in self.part:
            group.add(self.sites, self.source, self.product)


# Makes the product of a part's sparse group from its addresses [starts, columns, values][layers, rows].
MakeProduct = Callable[[int, Sequence[torch.Tensor]], SparseProduct]


def bind(layout: Layout, numbers: torch.Tensor, matrices: Matrices, make_product: MakeProduct, lanes: Lanes) -> Batch:
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
        [_bind(group, reader, matrices, partial(make_product, place)) for group in part]
        for place, part in enumerate(layout.parts)
    ]
    return Batch(ids, lengths, types, norms, matrices, parts, lanes)


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
) -> _Bound:
    rows = None if group.every else reader.take(group.rows)
    shape = len(group.layers), group.rows
    terms: _Terms
    if group.type == "sparse":
        terms = _Sparse(make_product([reader.take(*shape) for _ in range(3)]))
    elif group.type == "bias":
        terms = _Bias(reader.take(*shape), matrices)
    else:
        rank, down, up = (reader.take(*shape) for _ in range(3))
        consecutive = torch.arange(group.rank, device=rank.device)
        held = consecutive < rank[..., None]
        down, up = (torch.where(held, first[..., None] + consecutive, 0) for first in (down, up))
        if group.type == "low_rank":
            terms = _LowRank(down, up, matrices)
        else:
            gate = torch.where(held, reader.take(*shape)[..., None] + consecutive, 0)
            assert group.activation is not None
            terms = _Bottleneck(group.activation, down, up, gate, reader.take(*shape), matrices)
    places = {layer: place for place, layer in enumerate(group.layers)}
    return _Bound(places, rows, terms, group.type == "bottleneck")


def _gathered(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows [n, rank] of a matrix, [n, rank, length]."""
    return matrix.index_select(0, rows.reshape(-1)).view(*rows.shape, matrix.shape[1])
