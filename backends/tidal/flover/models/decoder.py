"""Passes of a decoder over slots of keys and values: prefill of one chunk, and a decode step of a window."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tidal.flover.form import DecoderForm, Rotary
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.attention import MixedRows, attention
from tidal.flover.models.layer import (
    Attend,
    Layer,
    LoraUpdate,
    RotaryTable,
    no_update,
    norm,
    norm_weights,
    rotary_table,
)
from tidal.flover.models.linear import NativeLinear, linear, working_type
from tidal.flover.models.passes import NativePass
from tidal.flover.models.weights import DecoderWeights, Dense
from tidal.flover.native.library import usable
from tidal.flover.native.tiling import DEFAULT_TILING, Tiling


class DecoderModel:
    """A decoder that reads and writes keys and values in slots; call it in `torch.inference_mode`.

    Passes make no allocations that grow and no calls per slot: keys and values are read in place.

    Attributes:
        native_pass: Passes of the native library over any rows, without tasks; None: not available.

    Args:
        form: Architecture of the decoder.
        weights: Weights, all on one device and of one type.
        buffers: Keys and values of all slots.
        max_length: Number of tokens of a slot.
        tiling: Choices of the native library's kernels.
    """

    def __init__(
        self, form: DecoderForm, weights: DecoderWeights, buffers: KeyValueBuffers, max_length: int,
        tiling: Tiling = DEFAULT_TILING,
    ) -> None:  # fmt: skip
        self._form = form
        self._attention = attention(form, buffers)
        self._type = working_type(weights.tokens)
        self._tokens, self._positions = weights.tokens, weights.positions
        self._layers = tuple(Layer(form, layer, number, tiling) for number, layer in enumerate(weights.layers))
        self._final_norm = norm_weights(form, weights.final_norm)
        self._head = linear(weights.head or Dense(weights.tokens, None), None, tiling)
        like = weights.tokens.new_empty(0, dtype=self._type)
        tables = {
            rotary: rotary_table(rotary, max_length, like)
            for rotary in dict.fromkeys(form.layer_rotary(layer) for layer in range(form.layers))
            if rotary is not None
        }
        self._rotary = tables
        self._indices = torch.arange(max(max_length, len(buffers.layers[0])), device=weights.tokens.device)
        self.native_pass: NativePass | None = None
        if (library := usable(weights.tokens.device)) is not None and isinstance(self._head, NativeLinear):
            self.native_pass = NativePass(
                form, self._tokens, self._positions, self._layers, self._final_norm, self._head, tables, buffers,
                library,
            )  # fmt: skip

    def prefill(
        self, slot: int, token_ids: torch.Tensor, start: int, *, last: bool, lora: LoraUpdate = no_update
    ) -> torch.Tensor | None:
        """Prefill a chunk of a prompt.

        Args:
            slot: Slot to write to.
            token_ids: Token ids of the chunk, [chunk].
            start: Number of tokens that the slot holds already.
            last: Whether to return logits.
            lora: Low-rank updates of the prompt's task.

        Returns:
            Logits after the chunk's last token, [vocabulary]; None unless `last`.
        """
        end = start + len(token_ids)
        if self.native_pass is not None and lora is no_update:
            wanted = torch.tensor([len(token_ids) - 1] if last else [], dtype=torch.int32)
            logits = self.native_pass(token_ids, torch.full_like(token_ids, slot), self._indices[start:end], wanted)
            return logits[0] if last else None
        hidden = self._pass(token_ids, self._indices[start:end], self._attention.prefill(slot, start, end), lora)
        return self._logits(hidden[-1:])[0] if last else None

    def score(self, slot: int, token_ids: torch.Tensor) -> torch.Tensor:
        """Prefill a text, and return the logits after each of its tokens, [tokens, vocabulary]."""
        count = len(token_ids)
        if self.native_pass is not None:
            return self.native_pass(token_ids, torch.full_like(token_ids, slot), self._indices[:count])
        attend = self._attention.prefill(slot, 0, count)
        return self._logits(self._pass(token_ids, self._indices[:count], attend, no_update))

    def decode(
        self, begin: int, end: int, token_ids: torch.Tensor, positions: torch.Tensor, attend: int,
        lora: LoraUpdate = no_update,
    ) -> torch.Tensor:  # fmt: skip
        """Decode one token for every slot of a window.

        Args:
            begin: First slot.
            end: Slot after the last.
            token_ids: Input token of each slot, [end - begin].
            positions: Position of each token in its slot, [end - begin].
            attend: Number of tokens attended to, above the largest position.
            lora: Low-rank updates of the slots' tasks.

        Returns:
            Logits, [end - begin, vocabulary].
        """
        if self.native_pass is not None and lora is no_update:
            return self.native_pass(token_ids, self._indices[begin:end], positions)
        attend_to = self._attention.decode(begin, end, positions, attend)
        return self._logits(self._pass(token_ids, positions, attend_to, lora))

    def mixed(
        self, token_ids: torch.Tensor, positions: torch.Tensor, rows: MixedRows, wanted: Sequence[int]
    ) -> torch.Tensor:
        """Decode and prefill in one pass.

        Args:
            token_ids: Token ids of all rows, [rows].
            positions: Position of each row, [rows].
            rows: Slots and chunks that the rows belong to.
            wanted: Rows whose logits are returned.

        Returns:
            Logits, [wanted, vocabulary].
        """
        if self.native_pass is not None:
            return self.native_pass(token_ids, rows.slots, positions, torch.tensor(wanted, dtype=torch.int32))
        hidden = self._pass(token_ids, positions, self._attention.mixed(rows, positions), no_update)
        return self._logits(hidden[torch.tensor(wanted, dtype=torch.int64, device=hidden.device)])

    def _pass(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, lora: LoraUpdate) -> torch.Tensor:
        form = self._form
        hidden = self._tokens[token_ids].to(self._type)
        if form.embedding_scale != 1:
            hidden = hidden * form.embedding_scale
        if self._positions is not None:
            hidden = hidden + self._positions[positions]
        turned: dict[Rotary | None, RotaryTable | None] = {
            rotary: (cosines[positions], sines[positions]) for rotary, (cosines, sines) in self._rotary.items()
        }
        for number, layer in enumerate(self._layers):
            hidden = layer(hidden, turned.get(form.layer_rotary(number)), attend, lora)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._head(norm(self._form, hidden, self._final_norm)).float()
        return logits if (cap := self._form.logit_cap) is None else logits.div_(cap).tanh_().mul_(cap)
