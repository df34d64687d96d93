"""One layer of a decoder over rows of tokens of any sequences."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch.nn import functional

from tidal.flover.form import DecoderForm, Projection, RopeScaling, Rotary
from tidal.flover.models.experts import ExpertLayer
from tidal.flover.models.linear import Linear, activate, linear, working_type
from tidal.flover.models.weights import Affine, LayerWeights
from tidal.flover.native.tiling import DEFAULT_TILING, Tiling

# Factor of each component, and factor of the component that it is rotated with.
RotaryTable = tuple[torch.Tensor, torch.Tensor]


class Attend(Protocol):
    """Attention of the rows of one pass."""

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Write the keys and values of the rows to their slots, and attend.

        Args:
            layer: Index of the layer.
            qkv: Queries, keys and values, contiguous [rows, heads + 2 * kv_heads, head_dim].

        Returns:
            Attention output, [rows, heads * head_dim].
        """


class LoraUpdate(Protocol):
    """Low-rank updates of the rows of one pass, each row by its own task."""

    def __call__(
        self, layer: int, projection: Projection, rows: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Return what is added to the output of a projection, before its activation.

        Args:
            layer: Index of the layer.
            projection: Projection of the layer.
            rows: Input of the projection, [rows, inputs].
            residual: Rows to add too, [rows, outputs]; None: nothing. Not modified.

        Returns:
            Sum of update and residual, [rows, outputs]; None if there is neither.
        """


def no_update(
    layer: int, projection: Projection, rows: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Update nothing: all rows use the base model."""
    return residual


class Layer:
    """Attention and feed-forward part with their norms and residuals.

    Args:
        form: Architecture of the decoder.
        weights: Weights of the layer.
        number: Index of the layer.
        tiling: Choices of the native library's kernels.
    """

    def __init__(self, form: DecoderForm, weights: LayerWeights, number: int, tiling: Tiling = DEFAULT_TILING) -> None:
        self._form, self._number = form, number
        self.attention_norm, self.feed_norm = _norm(form, weights.attention_norm), _norm(form, weights.feed_norm)
        self.attention_after, self.feed_after = _norm(form, weights.attention_after), _norm(form, weights.feed_after)
        self.qkv, self.output = linear(weights.qkv, None, tiling), linear(weights.output, None, tiling)
        self.experts = None if weights.experts is None else ExpertLayer(form, weights.experts, tiling)
        if weights.up is not None and weights.down is not None:
            self.up = linear(weights.up, None if form.gated else form.activation, tiling)
            self.down = linear(weights.down, None, tiling)
        self.head_norm = None
        if weights.query_norm is not None and weights.key_norm is not None:
            queries, keys = (norm_weights(form, each).weight for each in (weights.query_norm, weights.key_norm))
            if form.wide_norm:
                queries, keys = queries.view(form.heads, -1), keys.view(form.kv_heads, -1)
            self.head_norm = torch.cat([queries.expand(form.heads, -1), keys.expand(form.kv_heads, -1)])

    def __call__(
        self, rows: torch.Tensor, rotary: RotaryTable | None, attend: Attend, lora: LoraUpdate = no_update
    ) -> torch.Tensor:
        """Map [rows, width] to [rows, width]; `rotary` is a `rotary_table` at the positions of the rows."""
        form = self._form
        normed = rows if self.attention_norm is None else norm(form, rows, self.attention_norm)
        attended = self._attention(normed, rows, rotary, attend, lora)
        if not form.shared_norm:
            normed = rows if form.parallel else attended
        if self.feed_norm is not None:
            normed = norm(form, normed, self.feed_norm)
        if self.experts is not None:
            return self.experts(normed) + attended
        added = lora(self._number, "up", normed)
        inner = self.up(normed, added)
        if form.gated:
            gate, inner = inner.chunk(2, -1)
            inner = activate(form.activation, gate) * inner
        elif added is not None:
            inner = activate(form.activation, inner)
        return self._summed("down", self.down, inner, attended, self.feed_after, lora)

    def _attention(
        self, normed: torch.Tensor, rows: torch.Tensor, rotary: RotaryTable | None, attend: Attend, lora: LoraUpdate
    ) -> torch.Tensor:
        form, count = self._form, len(normed)
        heads = self.qkv(normed, lora(self._number, "qkv", normed)).view(
            count, form.heads + 2 * form.kv_heads, form.head_dim
        )
        queries_and_keys = heads[:, : form.heads + form.kv_heads]
        if self.head_norm is not None:
            torch.mul(self._normed_heads(queries_and_keys), self.head_norm, out=queries_and_keys)
        if rotary is not None:
            rotate(queries_and_keys, rotary)
        attended = attend(self._number, heads)
        return self._summed("output", self.output, attended, rows, self.attention_after, lora)

    def _normed_heads(self, heads: torch.Tensor) -> torch.Tensor:
        form = self._form
        if not form.wide_norm:
            return functional.rms_norm(heads, (form.head_dim,), None, form.epsilon)
        parts = (part.flatten(1) for part in heads.split((form.heads, form.kv_heads), 1))
        return torch.cat([functional.rms_norm(part, part.shape[1:], None, form.epsilon) for part in parts], 1).view_as(
            heads
        )

    def _summed(
        self, name: Projection, projection: Linear, rows: torch.Tensor, residual: torch.Tensor, after: Affine | None,
        lora: LoraUpdate,
    ) -> torch.Tensor:  # fmt: skip
        """The sum of a projection, normalised if there is a norm after it, and the residual."""
        if after is None:
            return projection(rows, lora(self._number, name, rows, residual))
        return norm(self._form, projection(rows, lora(self._number, name, rows)), after) + residual


def _norm(form: DecoderForm, weights: Affine | None) -> Affine | None:
    return None if weights is None else norm_weights(form, weights)


def norm_weights(form: DecoderForm, weights: Affine) -> Affine:
    """Convert the weights of a norm to the working type, with the offset of the family."""
    to = working_type(weights.weight)
    weight = weights.weight.to(to)
    return Affine(
        weight + form.norm_offset if form.norm_offset else weight, None if weights.bias is None else weights.bias.to(to)
    )


def norm(form: DecoderForm, rows: torch.Tensor, weights: Affine) -> torch.Tensor:
    """Normalise the last axis of rows."""
    if form.norm == "rms":
        return functional.rms_norm(rows, rows.shape[-1:], weights.weight, form.epsilon)
    return functional.layer_norm(rows, rows.shape[-1:], weights.weight, weights.bias, form.epsilon)


def rotary_table(rotary: Rotary, length: int, like: torch.Tensor) -> RotaryTable:
    """Return the table of `rotate` for the positions of a slot of `length` tokens.

    Args:
        rotary: Rotary positions.
        length: Number of tokens of a slot.
        like: Tensor whose type and device the table has.

    Returns:
        Factors of components, and of those that they are rotated with, each [length, 1, dims].
    """
    frequencies = 1.0 / (rotary.theta ** (torch.arange(0, rotary.dims, 2, dtype=torch.float32) / rotary.dims))
    magnitude = 1.0
    if (scaling := rotary.scaling) is not None and scaling.kind == "longrope":
        frequencies = frequencies / torch.tensor(scaling.long if length > scaling.original else scaling.short)
        magnitude = scaling.magnitude
    elif scaling is not None:
        kept = _kept(rotary, scaling, frequencies)
        frequencies = (1 - kept) * frequencies / scaling.factor + kept * frequencies
        magnitude = scaling.magnitude
    angles = (torch.arange(length, dtype=torch.float32)[:, None] * frequencies)[:, None]
    cosines, sines = angles.cos() * magnitude, angles.sin() * magnitude
    return torch.cat([cosines, cosines], -1).to(like), torch.cat([-sines, sines], -1).to(like)


def _kept(rotary: Rotary, scaling: RopeScaling, frequencies: torch.Tensor) -> torch.Tensor:
    """Share of each frequency that stays as it is, 0 to 1; the rest is divided."""
    match scaling.kind:
        case "llama3":
            rotations = scaling.original * frequencies / (2 * math.pi)
            return ((rotations - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        case "yarn":
            # Components that make as many rotations over the length of training.
            begin, end = (
                rotary.dims * math.log(scaling.original / (2 * math.pi * rotations)) / (2 * math.log(rotary.theta))
                for rotations in (scaling.high, scaling.low)
            )
            if scaling.whole:
                begin, end = math.floor(begin), math.ceil(end)
            begin, end = max(begin, 0), min(end, rotary.dims - 1)
            numbers = torch.arange(len(frequencies), dtype=torch.float32)
            return 1 - ((numbers - begin) / max(end - begin, 1e-3)).clamp(0, 1)
    return torch.zeros(())


def rotate(heads: torch.Tensor, rotary: RotaryTable) -> None:
    """Rotate the first components of heads [rows, heads, head_dim] in place."""
    cosines, sines = rotary
    rotated = heads[..., : cosines.shape[-1]]
    first, second = rotated.chunk(2, -1)
    others = torch.cat([second, first], -1)
    rotated.mul_(cosines).addcmul_(others, sines)
