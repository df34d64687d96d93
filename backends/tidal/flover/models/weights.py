"""Weights of a decoder in one layout for all families.

Projections of a layer are fused: `qkv` yields queries, keys and values; `up` of a gated layer yields the gate and then
the values it is multiplied with. Linear weights are [outputs, inputs].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tidal.flover.models.quantized import Quantized


@dataclass(frozen=True, slots=True)
class Affine:
    """Weight and optional bias of a norm, [width]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Dense:
    """Weight [outputs, inputs] and optional bias [outputs] of a linear layer."""

    weight: torch.Tensor | Quantized
    bias: torch.Tensor | None

    @property
    def device(self) -> torch.device:
        """Device of the weight."""
        return (self.weight.values if isinstance(self.weight, Quantized) else self.weight).device

    def floats(self) -> torch.Tensor:
        """Return the weight as floating-point numbers, [outputs, inputs]."""
        return self.weight.dequantized() if isinstance(self.weight, Quantized) else self.weight


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Weights of a mixture of experts: one after the other, the shared one last.

    Attributes:
        router: Projection to the scores of all experts, [experts, width]; that of the shared one is its gate's.
        up: Projections to gates and the values that they are multiplied with, each [2 * inner, width].
        down: Second projections, each [width, inner].
    """

    router: torch.Tensor
    up: tuple[Dense, ...]
    down: tuple[Dense, ...]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer.

    Attributes:
        attention_norm: Norm before attention; None: the family has none.
        qkv: Projection to the queries of all heads, then keys, then values.
        query_norm: Norm of each head's queries; None: the family has none.
        key_norm: Norm of each head's keys; None: the family has none.
        output: Output projection of attention.
        feed_norm: Norm before the feed-forward part; None: it shares `attention_norm`, or the family has none.
        up: First projection of the feed-forward part; [2 * inner, width] if gated. None: the layer has experts.
        down: Second projection of the feed-forward part; None: the layer has experts.
        attention_after: Norm of attention's output; None: the family has none.
        feed_after: Norm of the feed-forward part's output; None: the family has none.
        experts: Mixture of experts; None: the layer has one feed-forward part.
    """

    attention_norm: Affine | None
    qkv: Dense
    query_norm: Affine | None
    key_norm: Affine | None
    output: Dense
    feed_norm: Affine | None
    up: Dense | None
    down: Dense | None
    attention_after: Affine | None = None
    feed_after: Affine | None = None
    experts: ExpertWeights | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Weights of a decoder.

    Attributes:
        tokens: Token embeddings, [vocabulary, width].
        positions: Position embeddings, [positions, width]; None: rotary positions.
        layers: Weights of the layers, in order.
        final_norm: Norm before the head.
        head: Projection to logits; None: its weight is `tokens`.
    """

    tokens: torch.Tensor
    positions: torch.Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: Affine
    head: Dense | None
