"""The two passes of a decoder over slots of keys and values: a chunk of one prompt, and a step of a window."""

from __future__ import annotations

import torch

from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.attention import attention
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.layer import Adding, Attend, Layer, norm, norm_weights, nothing, rotary_table
from tidal.flover.models.linear import NativeLinear, linear, working_type
from tidal.flover.models.passes import NativePass
from tidal.flover.models.weights import Affine, DecoderWeights
from tidal.flover.native.library import usable


class Decoder:
    """A decoder that reads and writes keys and values in slots.

    Both passes allocate nothing that grows, and call nothing slot by slot: keys and values are read where they lie.
    To be called in `torch.inference_mode`.

    Args:
        form: of the decoder.
        weights: all on one device, of one type.
        buffers: of the slots.
        max_length: tokens of a slot.
    """

    def __init__(self, form: DecoderForm, weights: DecoderWeights, buffers: KeyValueBuffers, max_length: int) -> None:
        self._form = form
        self._attention = attention(form, buffers)
        self._type = working_type(weights.tokens)
        self._tokens, self._positions = weights.tokens, weights.positions
        self._layers = tuple(Layer(form, layer, number) for number, layer in enumerate(weights.layers))
        self._final_norm = norm_weights(weights.final_norm)
        self._head = linear(weights.head or Affine(weights.tokens, None))
        self._turns = None
        if form.rotary is not None:
            self._turns = rotary_table(form.rotary, max_length, weights.tokens.new_empty(0, dtype=self._type))
        self._places = torch.arange(max(max_length, len(buffers.layers[0])), device=weights.tokens.device)
        self._whole = None
        if (library := usable(weights.tokens.device)) is not None and isinstance(self._head, NativeLinear):
            self._whole = NativePass(
                form, self._tokens, self._positions, self._layers, self._final_norm, self._head, self._turns, buffers,
                library,
            )  # fmt: skip

    @property
    def fused(self) -> NativePass | None:
        """Makes passes of any rows, without tasks; None: this decoder has no such passes."""
        return self._whole

    def prefill(
        self, slot: int, token_ids: torch.Tensor, start: int, *, last: bool, adding: Adding = nothing
    ) -> torch.Tensor | None:
        """Read a chunk of a prompt into a slot.

        Args:
            slot: to write to.
            token_ids: [chunk].
            start: tokens that the slot holds already.
            last: whether to give logits.
            adding: what the prompt's own task adds.

        Returns:
            Logits behind the chunk's last token, [vocabulary], or None.
        """
        end = start + len(token_ids)
        if self._whole is not None and adding is nothing:
            wanted = torch.tensor([len(token_ids) - 1] if last else [], dtype=torch.int32)
            logits = self._whole(token_ids, torch.full_like(token_ids, slot), self._places[start:end], wanted)
            return logits[0] if last else None
        hidden = self._pass(token_ids, self._places[start:end], self._attention.chunk(slot, start, end), adding)
        return self._logits(hidden[-1:])[0] if last else None

    def step(
        self, begin: int, end: int, token_ids: torch.Tensor, positions: torch.Tensor, attend: int,
        adding: Adding = nothing,
    ) -> torch.Tensor:  # fmt: skip
        """One token for every slot of a window.

        Args:
            begin: first slot.
            end: behind the last.
            token_ids: [end - begin].
            positions: [end - begin], where they are written.
            attend: tokens that are looked at, more than the largest position.
            adding: what slots' tasks add.

        Returns:
            Logits, [end - begin, vocabulary].
        """
        if self._whole is not None and adding is nothing:
            return self._whole(token_ids, self._places[begin:end], positions)
        attending = self._attention.step(begin, end, positions, attend)
        return self._logits(self._pass(token_ids, positions, attending, adding))

    def _pass(self, token_ids: torch.Tensor, places: torch.Tensor, attend: Attend, adding: Adding) -> torch.Tensor:
        hidden = self._tokens[token_ids].to(self._type)
        turns = None
        if self._positions is not None:
            hidden = hidden + self._positions[places]
        if self._turns is not None:
            turns = self._turns[0][places], self._turns[1][places]
        for layer in self._layers:
            hidden = layer(hidden, turns, attend, adding)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(norm(self._form, hidden, self._final_norm)).float()
