"""Attention of rows to the keys and values in slots: by the native library on a CPU, else in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from tidal.flover.form import DecoderForm
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.layer import Attend
from tidal.flover.models.operations import NONE, attend_operation
from tidal.flover.native.library import usable


class Attention(Protocol):
    """Attention of a pass, which is where a decode step differs from a prefill."""

    def prefill(self, slot: int, start: int, end: int) -> Attend:
        """Attention of rows at positions `start` to `end - 1` of one slot, which holds all positions before them."""

    def decode(self, begin: int, end: int, positions: torch.Tensor, attend: int) -> Attend:
        """Attention of one row per slot of a window, at positions [end - begin], all of them below `attend`."""

    def mixed(self, rows: MixedRows, positions: torch.Tensor) -> Attend:
        """Attention of one row for each of some slots, and then of the rows of chunks, at positions [all rows]."""


class MixedRows(NamedTuple):
    """Rows of a pass that decodes and prefills.

    Attributes:
        slots: Slot of each row, [all rows] int64 on the host.
        decoded: Number of rows that decode a token; they come first.
        attend: Number of tokens attended to, above the largest position of these.
        chunks: Slot, first position and the one after the last, of each chunk.
    """

    slots: torch.Tensor
    decoded: int
    attend: int
    chunks: Sequence[tuple[int, int, int]]


def attention(form: DecoderForm, buffers: KeyValueBuffers) -> Attention:
    """Return the fastest attention for the device of the buffers."""
    library = usable(buffers.layers[0].device)
    return TorchAttention(form, buffers) if library is None else NativeAttention(form, buffers, library)


class NativeAttention:
    """Attention by the native library, which reads keys and values in place and only as many as each row attends to.

    Rows are float32, keys and values float32, bfloat16 or integers of 8 bits.

    Args:
        form: Architecture of the decoder.
        buffers: Keys and values of all slots.
        library: The native library.
    """

    def __init__(self, form: DecoderForm, buffers: KeyValueBuffers, library: ctypes.CDLL) -> None:
        first = buffers.layers[0]
        self._run = library.tidal_attention
        self._operations = tuple(
            attend_operation(form, buffers, number, NONE, NONE) for number in range(len(buffers.layers))
        )
        self._buffers = buffers  # keeps the addresses valid
        self._width = form.heads * form.head_dim
        self._threads = torch.get_num_threads()
        self._indices = torch.arange(max(first.shape[0], first.shape[2]))

    def prefill(self, slot: int, start: int, end: int) -> Attend:
        """See `Attention`."""
        return self._rows(torch.full((end - start,), slot), self._indices[start:end])

    def decode(self, begin: int, end: int, positions: torch.Tensor, attend: int) -> Attend:
        """See `Attention`."""
        return self._rows(self._indices[begin:end], positions)

    def mixed(self, rows: MixedRows, positions: torch.Tensor) -> Attend:
        """See `Attention`."""
        return self._rows(rows.slots, positions)

    def _rows(self, slots: torch.Tensor, positions: torch.Tensor) -> Attend:
        count = len(slots)

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            attended = torch.empty(count, self._width)
            self._run(
                *(ctypes.addressof(self._operations[layer]), self._threads, count, qkv.data_ptr()),
                *(slots.data_ptr(), positions.data_ptr(), attended.data_ptr()),
            )
            return attended

        return attend


class TorchAttention:
    """Attention by torch, one call for all slots, without allocations that grow.

    Args:
        form: Architecture of the decoder.
        buffers: Keys and values of all slots.
    """

    def __init__(self, form: DecoderForm, buffers: KeyValueBuffers) -> None:
        self._form, self._buffers = form, buffers
        first = buffers.layers[0]
        self._indices = torch.arange(max(first.shape[0], first.shape[2]), device=first.device)

    def prefill(self, slot: int, start: int, end: int) -> Attend:
        """See `Attention`."""
        masks = self._masks(self._indices[:end], self._indices[start:end, None])

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            cache = self._buffers.layers[layer][slot]
            queries, new = self._split(qkv)
            cache[:, start:end] = new.transpose(0, 1)
            # Queries [chunk, kv_heads, group, head_dim]: the heads of a group share keys and values.
            keys, values = cache[:, None, :end].expand(-1, queries.shape[2], -1, -1).chunk(2)
            window = self._form.window(layer)
            # The first chunk needs no mask: attention has a causal mode.
            causal = start == 0 and (window is None or end <= window) and self._form.score_cap is None
            attended = self._attended(
                queries.permute(1, 2, 0, 3).to(cache), keys, values, None if causal else masks[window]
            )
            return attended.permute(2, 0, 1, 3).to(qkv).reshape(len(qkv), -1)

        return attend

    def decode(self, begin: int, end: int, positions: torch.Tensor, attend: int) -> Attend:
        """See `Attention`."""
        rows = self._indices[: end - begin]
        masks = self._masks(self._indices[:attend], positions[:, None, None, None])

        def over_window(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            cache = self._buffers.layers[layer][begin:end]
            queries, new = self._split(qkv)
            cache[rows, :, positions] = new.to(cache)
            return self._attended_rows(queries, cache[:, :, :attend], masks[self._form.window(layer)]).to(qkv)

        return over_window

    def mixed(self, rows: MixedRows, positions: torch.Tensor) -> Attend:
        """See `Attention`."""
        parts = [self.prefill(*chunk) for chunk in rows.chunks]
        sizes = [end - start for _, start, end in rows.chunks]
        if rows.decoded:
            parts = [self._decode_rows(rows.slots[: rows.decoded], positions[: rows.decoded], rows.attend), *parts]
            sizes = [rows.decoded, *sizes]

        def over_parts(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            return torch.cat([part(layer, own) for part, own in zip(parts, qkv.split(sizes), strict=True)])

        return over_parts

    def _decode_rows(self, slots: torch.Tensor, positions: torch.Tensor, attend: int) -> Attend:
        """Attention of one row for each of some slots, which are a window unless there are holes."""
        begin, end = int(slots[0]), int(slots[0]) + len(slots)
        if slots.tolist() == list(range(begin, end)):
            return self.decode(begin, end, positions, attend)
        own = slots.to(positions.device)
        masks = self._masks(self._indices[:attend], positions[:, None, None, None])

        def over_slots(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            cache = self._buffers.layers[layer]
            queries, new = self._split(qkv)
            cache[own, :, positions] = new.to(cache)
            return self._attended_rows(queries, cache[own, :, :attend], masks[self._form.window(layer)]).to(qkv)

        return over_slots

    def _attended_rows(self, queries: torch.Tensor, held: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attention of one row per slot to what its slot holds, [rows, heads * head_dim]."""
        keys, values = held.chunk(2, 1)
        # Queries that share keys and values are rows of one matrix product.
        return self._attended(queries.to(held), keys, values, mask).reshape(len(queries), -1)

    def _attended(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention by a mask, None: a causal one, over the last two axes."""
        scale, cap = self._form.attention_scale, self._form.score_cap
        if cap is None:
            return functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
            )
        assert mask is not None
        scores = (queries.float() @ keys.float().mT).mul_(scale / cap).tanh_().mul_(cap).add_(mask)
        return (scores.softmax(-1) @ values.float()).to(values)

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [rows, kv_heads, group, head_dim], and keys and values [rows, 2 * kv_heads, head_dim]."""
        form = self._form
        queries, new = qkv[:, : form.heads], qkv[:, form.heads :]
        return queries.view(len(qkv), form.kv_heads, -1, form.head_dim), new

    def _masks(self, keys: torch.Tensor, queries: torch.Tensor) -> dict[int | None, torch.Tensor]:
        """Additive masks of attention scores by window, from positions: 0, or minus infinity where keys are hidden."""
        masks = {}
        for window in dict.fromkeys(self._form.window(layer) for layer in range(self._form.layers)):
            hidden = keys > queries
            if window is not None:
                hidden = hidden | (keys <= queries - window)
            mask = torch.zeros(hidden.shape, dtype=self._buffers.layers[0].dtype, device=hidden.device)
            masks[window] = mask.masked_fill_(hidden, -torch.inf)
        return masks
