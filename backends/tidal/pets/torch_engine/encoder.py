"""A frozen encoder of BERT's form in torch, with every row's terms added to the shared products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from tidal.pets.engine.description import WORDS, BlockPaths, Description
from tidal.pets.torch_engine.operators import ACTIVATIONS, Matrices, Site

POSITIONS, TYPES = "positions", "types"


class Rows(Protocol):
    """The rows of a batch and their terms; see `bound.BoundBatch`."""

    @property
    def ids(self) -> torch.Tensor:
        """Token ids [rows, tokens]."""

    @property
    def lengths(self) -> torch.Tensor:
        """Number of real tokens [rows]."""

    @property
    def types(self) -> torch.Tensor | None:
        """Token types [rows, tokens], or None."""

    @property
    def norms(self) -> torch.Tensor | None:
        """Row numbers of normalisations, [normalisations, 2, rows], or None."""

    @property
    def matrices(self) -> Matrices:
        """Matrices of the pools by the length of their rows."""

    def add_terms(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Add the rows' terms to a shared product and return it."""

    def add_after_norm(
        self, sites: Sequence[Site], normalise: Callable[[torch.Tensor], torch.Tensor], product: torch.Tensor
    ) -> torch.Tensor:
        """Add the terms that read the normalised sum of a product and the residual, and return the product."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A shared product: of one linear layer, or of several with the same input."""

    weight: torch.Tensor
    bias: torch.Tensor
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class _Norm:
    number: int
    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Block:
    """The layers of a block. In the last block, the query is separate: often only the first token's is needed."""

    attention: tuple[_Layer, ...]
    attention_output: _Layer
    attention_norm: _Norm
    inner: _Layer
    outer: _Layer
    output_norm: _Norm


class TorchEncoder:
    """The encoder that `description` and its weights define.

    Only the first token's vector is pooled, so the last block computes its query, outputs and feed-forward layers for
    that token alone, unless the hidden states of all tokens are requested.

    Args:
        description: Layers of the encoder; it has a form.
        tensors: The tables `words`, `positions` and, with several types, `types`, and the tensors that the description
            names.
        device: Device that runs the encoder; it gets a copy of the tensors.
    """

    def __init__(self, description: Description, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        form = description.form
        assert form is not None
        self._form, self._source, self._device = form, tensors, device
        self._tables = {name: tensors[name].to(device) for name in (WORDS, POSITIONS, TYPES) if name in tensors}
        self._linear = {spec.path: number for number, spec in enumerate(description.linear)}
        self._norms = {spec.path: number for number, spec in enumerate(description.norm)}
        self._places = description
        self._embedding_norm = self._norm(form.embedding_norm)
        self._blocks = [self._block(block, last=block is form.blocks[-1]) for block in form.blocks]
        self._pooler = None if form.pooler is None else self._layer([form.pooler])
        self._activation = ACTIVATIONS[form.activation]
        self._source = {}

    def __call__(self, batch: Rows, *, all_tokens: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the pooled vectors of a batch, [rows, width], and its last hidden states.

        Args:
            batch: Rows of the batch.
            all_tokens: Whether hidden states are computed for all tokens, [rows, tokens, width], and not only for the
                first ones, [rows, 1, width].
        """
        tokens = batch.ids.shape[1]
        hidden = F.embedding(batch.ids, self._tables[WORDS]) + self._tables[POSITIONS][:tokens]
        if batch.types is not None:
            hidden = hidden + F.embedding(batch.types, self._tables[TYPES])
        hidden = self._normalised(self._embedding_norm, hidden, batch)
        real = torch.arange(tokens, device=batch.lengths.device) < batch.lengths[:, None]
        for block in self._blocks:
            hidden = self._through(block, hidden, real[:, None, None], batch, all_tokens=all_tokens)
        pooled = hidden[:, :1]
        if self._pooler is not None:
            assert self._form.pooler_activation is not None
            pooled = ACTIVATIONS[self._form.pooler_activation](self._product(self._pooler, pooled, batch))
        return pooled[:, 0], hidden

    def _through(
        self, block: _Block, hidden: torch.Tensor, real: torch.Tensor, batch: Rows, *, all_tokens: bool
    ) -> torch.Tensor:
        if len(block.attention) == 1:
            own = hidden
            query, key, value = self._product(block.attention[0], hidden, batch).chunk(3, -1)
        else:
            own = hidden if all_tokens else hidden[:, :1]
            query = self._product(block.attention[0], own, batch)
            key, value = self._product(block.attention[1], hidden, batch).chunk(2, -1)
        query, key, value = (
            each.view(*each.shape[:2], self._form.heads, -1).transpose(1, 2) for each in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=real).transpose(1, 2).flatten(2)
        attended = self._residual(block.attention_output, block.attention_norm, mixed, own, batch)
        inner = self._activation(self._product(block.inner, attended, batch))
        return self._residual(block.outer, block.output_norm, inner, attended, batch)

    def _residual(
        self, layer: _Layer, norm: _Norm, source: torch.Tensor, residual: torch.Tensor, batch: Rows
    ) -> torch.Tensor:
        """A product, its sum with the residual, and the normalisation."""

        def normalise(product: torch.Tensor) -> torch.Tensor:
            return self._normalised(norm, product + residual, batch)

        return normalise(batch.add_after_norm(layer.sites, normalise, self._product(layer, source, batch)))

    def _product(self, layer: _Layer, source: torch.Tensor, batch: Rows) -> torch.Tensor:
        return batch.add_terms(layer.sites, source, F.linear(source, layer.weight, layer.bias))

    def _normalised(self, norm: _Norm, hidden: torch.Tensor, batch: Rows) -> torch.Tensor:
        width = len(norm.weight)
        if batch.norms is None:
            return F.layer_norm(hidden, (width,), norm.weight, norm.bias, self._form.epsilon)
        weight, bias = (batch.matrices[width].index_select(0, rows)[:, None] for rows in batch.norms[norm.number])
        return torch.addcmul(bias, F.layer_norm(hidden, (width,), eps=self._form.epsilon), weight)

    def _block(self, positions: BlockPaths, *, last: bool) -> _Block:
        paths = [positions.query, positions.key, positions.value]
        return _Block(
            attention=(self._layer(paths[:1]), self._layer(paths[1:])) if last else (self._layer(paths),),
            attention_output=self._layer([positions.attention_output]),
            attention_norm=self._norm(positions.attention_norm),
            inner=self._layer([positions.inner]),
            outer=self._layer([positions.outer]),
            output_norm=self._norm(positions.output_norm),
        )

    def _layer(self, paths: Sequence[str]) -> _Layer:
        sites, weights, biases, first = [], [], [], 0
        for path in paths:
            number = self._linear[path]
            spec = self._places.linear[number]
            sites.append(Site(number, first, spec.outputs, spec.inputs))
            first += spec.outputs
            rows = slice(spec.first, spec.first + spec.outputs)
            weights.append(self._source[spec.weight][rows])
            biases.append(self._source[spec.bias][rows])
        return _Layer(torch.cat(weights).to(self._device), torch.cat(biases).to(self._device), tuple(sites))

    def _norm(self, path: str) -> _Norm:
        number = self._norms[path]
        spec = self._places.norm[number]
        weight, bias = (self._source[name].to(self._device) for name in (spec.weight, spec.bias))
        return _Norm(number, weight, bias)
