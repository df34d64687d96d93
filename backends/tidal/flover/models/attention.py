"""Attention of rows to what stands in slots: with the library of kernels on a CPU, else in torch."""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch.nn import functional

from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.layer import Attend
from tidal.flover.native.library import usable


class Attention(Protocol):
    """How the rows of a pass attend, which is where a step differs from reading a prompt."""

    def chunk(self, slot: int, start: int, end: int) -> Attend:
        """Of rows that are positions `start` to `end - 1` of one slot, which holds all before them."""

    def step(self, begin: int, end: int, positions: torch.Tensor, attend: int) -> Attend:
        """Of one row for every slot of a window, at positions [end - begin], all of them below `attend`."""


def attention(form: DecoderForm, buffers: KeyValueBuffers) -> Attention:
    """The fastest that there is for the device of the buffers."""
    library = usable(buffers.layers[0].device)
    return TorchAttention(form, buffers) if library is None else NativeAttention(form, buffers, library)


class NativeAttention:
    """Reads keys and values where they lie, of each row as many as it attends to.

    Rows are float32, keys and values of either type.
    """

    def __init__(self, form: DecoderForm, buffers: KeyValueBuffers, library: ctypes.CDLL) -> None:
        held = buffers.layers[0]
        self._run, self._half = library.tidal_attention, held.dtype == torch.bfloat16
        self._held = tuple(layer.data_ptr() for layer in buffers.layers)
        self._kept = buffers  # the addresses are good as long as it lives
        self._sizes = form.heads, form.kv_heads, form.head_dim, held.shape[2]
        self._width = form.heads * form.head_dim
        self._threads = torch.get_num_threads()
        self._places = torch.arange(max(held.shape[0], held.shape[2]))

    def chunk(self, slot: int, start: int, end: int) -> Attend:
        """See `Attention`."""
        return self._rows(torch.full((end - start,), slot), self._places[start:end])

    def step(self, begin: int, end: int, positions: torch.Tensor, attend: int) -> Attend:
        """See `Attention`."""
        return self._rows(self._places[begin:end], positions)

    def _rows(self, slots: torch.Tensor, positions: torch.Tensor) -> Attend:
        count = len(slots)

        def attend(layer: int, made: torch.Tensor) -> torch.Tensor:
            found = torch.empty(count, self._width)
            self._run(
                *(self._half, self._threads, count, *self._sizes, made.data_ptr(), self._held[layer]),
                *(slots.data_ptr(), positions.data_ptr(), found.data_ptr()),
            )
            return found

        return attend


class TorchAttention:
    """With torch's own operations, which allocate nothing that grows and are called for all slots at once."""

    def __init__(self, form: DecoderForm, buffers: KeyValueBuffers) -> None:
        self._form, self._buffers = form, buffers
        held = buffers.layers[0]
        self._places = torch.arange(max(held.shape[0], held.shape[2]), device=held.device)

    def chunk(self, slot: int, start: int, end: int) -> Attend:
        """See `Attention`."""
        # The first chunk needs no mask: attention takes whole causal blocks.
        mask = None if start == 0 else self._mask(self._places[:end] > self._places[start:end, None])

        def attend(layer: int, made: torch.Tensor) -> torch.Tensor:
            held = self._buffers.layers[layer][slot]
            queries, written = self._apart(made)
            held[:, start:end] = written.transpose(0, 1)
            # Queries [chunk, kv_heads, group, head_dim]: heads that share keys and values are a batch of theirs.
            keys, values = held[:, None, :end].expand(-1, queries.shape[2], -1, -1).chunk(2)
            found = functional.scaled_dot_product_attention(
                queries.permute(1, 2, 0, 3).to(held), keys, values, attn_mask=mask, is_causal=mask is None
            )
            return found.permute(2, 0, 1, 3).to(made).reshape(len(made), -1)

        return attend

    def step(self, begin: int, end: int, positions: torch.Tensor, attend: int) -> Attend:
        """See `Attention`."""
        rows = self._places[: end - begin]
        mask = self._mask(self._places[:attend] > positions[:, None])[:, None, None]

        def over_window(layer: int, made: torch.Tensor) -> torch.Tensor:
            held = self._buffers.layers[layer][begin:end]
            queries, written = self._apart(made)
            held[rows, :, positions] = written.to(held)
            keys, values = held[:, :, :attend].chunk(2, 1)
            # Queries that share keys and values are rows of one product.
            found = functional.scaled_dot_product_attention(queries.to(held), keys, values, attn_mask=mask)
            return found.to(made).reshape(len(made), -1)

        return over_window

    def _apart(self, made: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [rows, kv_heads, group, head_dim], and keys and values as they are."""
        form = self._form
        queries, written = made[:, : form.heads], made[:, form.heads :]
        return queries.view(len(made), form.kv_heads, -1, form.head_dim), written

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        """What is added to attention's scores: nothing where it may look, minus infinity where it may not."""
        mask = torch.zeros(hidden.shape, dtype=self._buffers.layers[0].dtype, device=hidden.device)
        return mask.masked_fill_(hidden, -torch.inf)
