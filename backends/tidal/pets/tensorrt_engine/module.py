"""The encoder as a module for a plan: from banks, row numbers and tokens to pooled vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tidal.pets.engine.description import Description
from tidal.pets.tensorrt_engine.form import POOLED, DenseForm, bank_names, bottleneck_layers
from tidal.pets.terms import ACTIVATIONS
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.operators import ACTIVATIONS as FUNCTIONS
from tidal.pets.torch_engine.operators import (
    BiasOperator,
    BottleneckOperator,
    LowRankOperator,
    Matrices,
    Site,
    consecutive,
)


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows with all dense types of terms; a row without one has zeros. See `encoder.Rows`."""

    ids: torch.Tensor
    lengths: torch.Tensor
    types: torch.Tensor | None
    norms: torch.Tensor | None
    matrices: Matrices
    bias: BiasOperator
    low_rank: LowRankOperator
    bottleneck: BottleneckOperator
    adapters: Sequence[int]

    def add_terms(self, sites: Sequence[Site], source: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Add the rows' terms to a shared product, not in place, which would need scattered writes."""
        deltas = [
            self.low_rank.delta(site.number, site, source) + self.bias.delta(site.number, site, source)
            for site in sites
        ]
        product = product + torch.cat(deltas, -1)
        for site in sites:
            if site.number in self.adapters:
                assert len(sites) == 1
                product = product + self.bottleneck.delta(self.adapters.index(site.number), site, product)
        return product

    def add_after_norm(
        self, sites: Sequence[Site], normalise: Callable[[torch.Tensor], torch.Tensor], product: torch.Tensor
    ) -> torch.Tensor:
        """Return the product: a plan has no such terms, see `form.check_terms`."""
        return product


class DenseModule(torch.nn.Module):
    """The module of an encoder; its inputs are those of `form.input_shapes`."""

    def __init__(self, encoder: TorchEncoder, description: Description, form: DenseForm) -> None:
        super().__init__()
        self._encoder = encoder
        self._adapters = bottleneck_layers(description)
        self._lengths = list(bank_names(description))
        self._form = form

    def forward(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        norm_rows: torch.Tensor,
        bias_rows: torch.Tensor,
        low_rank: torch.Tensor,
        bottleneck: torch.Tensor,
        activation: torch.Tensor,
        bank_scalars: torch.Tensor,
        bank_hidden: torch.Tensor,
        bank_inner: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Compute the pooled vectors [rows, width]."""
        matrices = dict(zip(self._lengths, (bank_scalars, bank_hidden, bank_inner), strict=True))
        # The operators expect layers first.
        rank, down, up = low_rank.permute(1, 2, 0)
        low = consecutive([down, up], rank, self._form.rank)
        rank, down, up, gate, after = bottleneck.permute(1, 2, 0)
        wide = consecutive([down, up, gate], rank, self._form.bottleneck)
        which = activation[:, None, None]

        def activated(inner: torch.Tensor) -> torch.Tensor:
            relu, gelu, silu = (FUNCTIONS[name](inner) for name in ACTIVATIONS)
            return torch.where(which == 0, relu, torch.where(which == 1, gelu, silu))

        rows = _Rows(
            ids=input_ids,
            lengths=lengths,
            types=token_type_ids,
            norms=norm_rows.permute(1, 2, 0),
            matrices=matrices,
            bias=BiasOperator(bias_rows.permute(1, 0), matrices),
            low_rank=LowRankOperator(low, matrices),
            bottleneck=BottleneckOperator(activated, wide, after, matrices),
            adapters=self._adapters,
        )
        return {POOLED: self._encoder(rows)[0]}
