"""The two passes of a decoder over slots of keys and values: a chunk of one prompt, and a step of a window."""

from __future__ import annotations

import torch
from torch.nn import functional

from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.layer import Attend, Layer, norm, rotary_table
from tidal.flover.models.linear import linear
from tidal.flover.models.weights import Affine, DecoderWeights


class Decoder:
    """A decoder that reads and writes keys and values in slots.

    Both passes allocate nothing that grows, and call nothing slot by slot: keys and values are read where they lie.
    To be called in `torch.inference_mode`.

    Args:
        form: of the decoder.
        weights: all on one device, of one type, which is also the type that is computed in.
        buffers: of the slots.
        max_length: tokens of a slot.
    """

    def __init__(self, form: DecoderForm, weights: DecoderWeights, buffers: KeyValueBuffers, max_length: int) -> None:
        self._form = form
        self._buffers = buffers
        self._tokens, self._positions = weights.tokens, weights.positions
        self._layers = tuple(Layer(form, layer, number) for number, layer in enumerate(weights.layers))
        self._final_norm = weights.final_norm
        self._head = linear(weights.head or Affine(weights.tokens, None))
        self._turns = None if form.rotary is None else rotary_table(form.rotary, max_length, weights.tokens)
        self._places = torch.arange(max(max_length, len(buffers.layers[0])), device=weights.tokens.device)

    def prefill(self, slot: int, token_ids: torch.Tensor, start: int, *, last: bool) -> torch.Tensor | None:
        """Read a chunk of a prompt into a slot.

        Args:
            slot: to write to.
            token_ids: [chunk].
            start: tokens that the slot holds already.
            last: whether to give logits.

        Returns:
            Logits behind the chunk's last token, [vocabulary], or None.
        """
        end = start + len(token_ids)
        places = self._places[start:end]
        # The first chunk needs no mask: attention takes whole causal blocks.
        mask = None if start == 0 else self._mask(self._places[:end] > places[:, None])

        def attend(layer: int, queries: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
            held = self._buffers.layers[layer][slot]
            held[:, start:end] = written.transpose(0, 1)
            # Queries [chunk, kv_heads, group, head_dim]: heads that share keys and values are a batch of theirs.
            keys, values = held[:, None, :end].expand(-1, queries.shape[2], -1, -1).chunk(2)
            found = functional.scaled_dot_product_attention(
                queries.permute(1, 2, 0, 3).to(held), keys, values, attn_mask=mask, is_causal=mask is None
            )
            return found.permute(2, 0, 1, 3).to(queries)

        hidden = self._pass(token_ids, places, attend)
        return self._logits(hidden[-1:])[0] if last else None

    def step(self, begin: int, end: int, token_ids: torch.Tensor, positions: torch.Tensor, attend: int) -> torch.Tensor:
        """One token for every slot of a window.

        Args:
            begin: first slot.
            end: behind the last.
            token_ids: [end - begin].
            positions: [end - begin], where they are written.
            attend: tokens that are looked at, more than the largest position.

        Returns:
            Logits, [end - begin, vocabulary].
        """
        rows = self._places[: end - begin]
        mask = self._mask(self._places[:attend] > positions[:, None])[:, None, None]

        def over_window(layer: int, queries: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
            held = self._buffers.layers[layer][begin:end]
            held[rows, :, positions] = written.to(held)
            keys, values = held[:, :, :attend].chunk(2, 1)
            # Queries that share keys and values are rows of one product.
            found = functional.scaled_dot_product_attention(queries.to(held), keys, values, attn_mask=mask)
            return found.to(queries)

        return self._logits(self._pass(token_ids, positions, over_window))

    def _pass(self, token_ids: torch.Tensor, places: torch.Tensor, attend: Attend) -> torch.Tensor:
        hidden = self._tokens[token_ids]
        turns = None
        if self._positions is not None:
            hidden = hidden + self._positions[places]
        if self._turns is not None:
            turns = self._turns[0][places], self._turns[1][places]
        for layer in self._layers:
            hidden = layer(hidden, turns, attend)
        return hidden

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        """What is added to attention's scores: nothing where it may look, minus infinity where it may not."""
        mask = torch.zeros(hidden.shape, dtype=self._buffers.layers[0].dtype, device=hidden.device)
        return mask.masked_fill_(hidden, -torch.inf)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(norm(self._form, hidden, self._final_norm)).float()
