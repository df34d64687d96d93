"""One layer of a decoder over rows of tokens, whichever sequences they belong to."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch.nn import functional

from tidal.flover.models.form import DecoderForm, Product, Rotary
from tidal.flover.models.linear import activate, linear, working_type
from tidal.flover.models.weights import Affine, LayerWeights

# What components are multiplied with, and what the component that each is turned with is.
Turns = tuple[torch.Tensor, torch.Tensor]


class Attend(Protocol):
    """How rows attend, which is where a step differs from reading a prompt."""

    def __call__(self, layer: int, made: torch.Tensor) -> torch.Tensor:
        """Write keys and values of the rows where they belong, and attend.

        Args:
            layer: its number.
            made: [rows, heads + 2 * kv_heads, head_dim], queries, keys and values; contiguous.

        Returns:
            [rows, heads * head_dim].
        """


class Adding(Protocol):
    """What rows add to the products that they share."""

    def __call__(
        self, layer: int, product: Product, rows: torch.Tensor, onto: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """What is added to a product, before its activation.

        Args:
            layer: its number.
            product: of the layer.
            rows: [rows, inputs], what the product is of.
            onto: [rows, outputs], what is added too; None: nothing. Not changed.

        Returns:
            [rows, outputs], or None where nothing is added.
        """


def nothing(layer: int, product: Product, rows: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor | None:
    """Add nothing of rows' own."""
    return onto


class Layer:
    """Attention and feed-forward part with their norms and residuals."""

    def __init__(self, form: DecoderForm, weights: LayerWeights, number: int) -> None:
        self._form, self._number = form, number
        self.attention_norm = norm_weights(weights.attention_norm)
        self.feed_norm = None if weights.feed_norm is None else norm_weights(weights.feed_norm)
        self.qkv, self.output = linear(weights.qkv), linear(weights.output)
        self.up = linear(weights.up, None if form.gated else form.activation)
        self.down = linear(weights.down)
        self.head_norm = None
        if weights.query_norm is not None and weights.key_norm is not None:
            queries, keys = weights.query_norm.weight, weights.key_norm.weight
            shared = torch.cat([queries.expand(form.heads, -1), keys.expand(form.kv_heads, -1)])
            self.head_norm = shared.to(working_type(shared))

    def __call__(
        self, rows: torch.Tensor, turns: Turns | None, attend: Attend, adding: Adding = nothing
    ) -> torch.Tensor:
        """[rows, width] to the same; `turns` are a `rotary_table` at the rows' positions."""
        form = self._form
        read = norm(form, rows, self.attention_norm)
        attended = self._attention(read, rows, turns, attend, adding)
        if self.feed_norm is not None:
            read = norm(form, rows if form.parallel else attended, self.feed_norm)
        added = adding(self._number, "up", read)
        inner = self.up(read, added)
        if form.gated:
            gate, inner = inner.chunk(2, -1)
            inner = activate(form.activation, gate) * inner
        elif added is not None:
            inner = activate(form.activation, inner)
        return self.down(inner, adding(self._number, "down", inner, attended))

    def _attention(
        self, read: torch.Tensor, rows: torch.Tensor, turns: Turns | None, attend: Attend, adding: Adding
    ) -> torch.Tensor:
        form, count = self._form, len(read)
        heads = self.qkv(read, adding(self._number, "qkv", read)).view(
            count, form.heads + 2 * form.kv_heads, form.head_dim
        )
        queries_and_keys = heads[:, : form.heads + form.kv_heads]
        if self.head_norm is not None:
            normed = functional.rms_norm(queries_and_keys, (form.head_dim,), None, form.epsilon)
            torch.mul(normed, self.head_norm, out=queries_and_keys)
        if turns is not None:
            turn(queries_and_keys, turns)
        found = attend(self._number, heads)
        return self.output(found, adding(self._number, "output", found, rows))


def norm_weights(weights: Affine) -> Affine:
    """A norm's weights in the type that is computed in."""
    to = working_type(weights.weight)
    return Affine(weights.weight.to(to), None if weights.bias is None else weights.bias.to(to))


def norm(form: DecoderForm, rows: torch.Tensor, weights: Affine) -> torch.Tensor:
    """Normalise the last axis."""
    if form.norm == "rms":
        return functional.rms_norm(rows, rows.shape[-1:], weights.weight, form.epsilon)
    return functional.layer_norm(rows, rows.shape[-1:], weights.weight, weights.bias, form.epsilon)


def rotary_table(rotary: Rotary, length: int, like: torch.Tensor) -> Turns:
    """What `turn` takes for positions below `length`, each [length, 1, dims], of the type of `like`."""
    frequencies = 1.0 / (rotary.theta ** (torch.arange(0, rotary.dims, 2, dtype=torch.float32) / rotary.dims))
    if (scaling := rotary.scaling) is not None:
        stretched = frequencies / scaling.factor
        if scaling.kind == "llama3":
            # Turns over the length of training: few are stretched, many kept, and between them a mixture.
            turns = scaling.original * frequencies / (2 * math.pi)
            kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
            stretched = (1 - kept) * stretched + kept * frequencies
        frequencies = stretched
    angles = (torch.arange(length, dtype=torch.float32)[:, None] * frequencies)[:, None]
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat([cosines, cosines], -1).to(like), torch.cat([-sines, sines], -1).to(like)


def turn(heads: torch.Tensor, turns: Turns) -> None:
    """Turn the first components of heads [rows, heads, head_dim] in place."""
    cosines, sines = turns
    turned = heads[..., : cosines.shape[-1]]
    first, second = turned.chunk(2, -1)
    others = torch.cat([second, first], -1)
    turned.mul_(cosines).addcmul_(others, sines)
