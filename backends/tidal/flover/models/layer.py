"""One layer of a decoder over rows of tokens, whichever sequences they belong to."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch.nn import functional

from tidal.flover.models.form import DecoderForm, Rotary
from tidal.flover.models.linear import Linear
from tidal.flover.models.weights import Affine, LayerWeights

Turns = tuple[torch.Tensor, torch.Tensor]


class Attend(Protocol):
    """How rows attend, which is where a step differs from reading a prompt."""

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values of the rows where they belong, and attend.

        Args:
            layer: its number.
            queries: [rows, kv_heads, heads / kv_heads, head_dim].
            keys: [rows, kv_heads, head_dim].
            values: the same.

        Returns:
            Of the shape of `queries`.
        """


class Layer:
    """Attention and feed-forward part with their norms and residuals."""

    def __init__(self, form: DecoderForm, weights: LayerWeights, number: int) -> None:
        self._form, self._weights, self._number = form, weights, number
        self._qkv, self._output = Linear(weights.qkv), Linear(weights.output)
        self._up, self._down = Linear(weights.up), Linear(weights.down)

    def __call__(self, rows: torch.Tensor, turns: Turns | None, attend: Attend) -> torch.Tensor:
        """[rows, width] to the same; `turns` as `turns_of` gives them for the rows' positions."""
        form, weights = self._form, self._weights
        read = norm(form, rows, weights.attention_norm)
        attended = rows + self._attention(read, turns, attend)
        if not form.parallel:
            rows = attended
        if weights.feed_norm is not None:
            read = norm(form, rows, weights.feed_norm)
        return attended + self._feed(read)

    def _attention(self, read: torch.Tensor, turns: Turns | None, attend: Attend) -> torch.Tensor:
        form = self._form
        heads = self._qkv(read).view(len(read), form.heads + 2 * form.kv_heads, form.head_dim)
        queries, keys, values = heads.split((form.heads, form.kv_heads, form.kv_heads), 1)
        if self._weights.query_norm is not None and self._weights.key_norm is not None:
            queries, keys = norm(form, queries, self._weights.query_norm), norm(form, keys, self._weights.key_norm)
        if turns is not None:
            queries, keys = turn(queries, turns), turn(keys, turns)
        grouped = queries.reshape(len(read), form.kv_heads, -1, form.head_dim)
        return self._output(attend(self._number, grouped, keys, values).reshape(len(read), -1))

    def _feed(self, read: torch.Tensor) -> torch.Tensor:
        inner = self._up(read)
        if self._form.gated:
            gate, inner = inner.chunk(2, -1)
            return self._down(_activate(self._form, gate) * inner)
        return self._down(_activate(self._form, inner))


def norm(form: DecoderForm, rows: torch.Tensor, weights: Affine) -> torch.Tensor:
    """Normalise the last axis."""
    if form.norm == "rms":
        return functional.rms_norm(rows, rows.shape[-1:], weights.weight, form.epsilon)
    return functional.layer_norm(rows, rows.shape[-1:], weights.weight, weights.bias, form.epsilon)


def rotary_table(rotary: Rotary, length: int, like: torch.Tensor) -> Turns:
    """Cosines and sines of the angles at positions below `length`, each [length, dims / 2], of the type of `like`."""
    frequencies = 1.0 / (rotary.theta ** (torch.arange(0, rotary.dims, 2, dtype=torch.float32) / rotary.dims))
    if (scaling := rotary.scaling) is not None:
        stretched = frequencies / scaling.factor
        if scaling.kind == "llama3":
            # Turns over the length of training: few are stretched, many kept, and between them a mixture.
            turns = scaling.original * frequencies / (2 * math.pi)
            kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
            stretched = (1 - kept) * stretched + kept * frequencies
        frequencies = stretched
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos().to(like), angles.sin().to(like)


def turn(heads: torch.Tensor, turns: Turns) -> torch.Tensor:
    """Turn the first components of heads [rows, heads, head_dim] by the rows' angles, each [rows, 1, dims / 2]."""
    cosines, sines = turns
    half = cosines.shape[-1]
    first, second, rest = heads.split((half, half, heads.shape[-1] - 2 * half), -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines, rest], -1)


def _activate(form: DecoderForm, inner: torch.Tensor) -> torch.Tensor:
    match form.activation:
        case "gelu":
            return functional.gelu(inner)
        case "gelu_new":
            return functional.gelu(inner, approximate="tanh")
        case "relu":
            return functional.relu(inner)
        case "silu":
            return functional.silu(inner)
