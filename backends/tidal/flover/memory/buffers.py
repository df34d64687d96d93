"""The keys and values of all slots: tensors that are allocated once, and moved within."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from tidal.errors import InvalidArgument
from tidal.flover.memory.slots import Copy, Move
from tidal.flover.models.form import DecoderForm
from tidal.flover.native.library import large_pages, usable


def kept_type(computed: torch.dtype, device: torch.device) -> torch.dtype:
    """The type of keys and values, and of attention, where everything else is computed in `computed`.

    Without the library of kernels that is float32 on a CPU: torch has no attention of single tokens in bfloat16 that is
    as fast as reading twice the bytes.
    """
    return torch.float32 if device.type == "cpu" and usable(device) is None else computed


def buffer_bytes(form: DecoderForm, slots: int, max_length: int, dtype: torch.dtype) -> int:
    """What `KeyValueBuffers` allocate for these sizes, in bytes."""
    return dtype.itemsize * 2 * form.kv_width * max_length * (form.layers * slots + 1)


class KeyValueBuffers:
    """Keys and values of every layer, [slots, 2 * kv_heads, max_length, head_dim] and contiguous: keys, then values.

    So a slice of slots is a slice of memory, and what a token adds is written at once. Nothing is allocated after
    construction. All numbers are finite at any time: a step multiplies what it masks by 0, and 0 times infinity would
    spread.

    Attributes:
        layers: one tensor a layer.
        bytes: of all.

    Args:
        form: of the decoder.
        slots: that are held.
        max_length: tokens of a slot.
        dtype: of the numbers.
        device: where they lie.
        available: bytes that may be taken; None: no limit.

    Raises:
        InvalidArgument: they do not fit; says what they take and what there is.
    """

    def __init__(
        self,
        form: DecoderForm,
        slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        available: int | None = None,
    ) -> None:
        self.bytes = buffer_bytes(form, slots, max_length, dtype)
        if available is not None and self.bytes > available:
            raise InvalidArgument(
                f"{slots} slots of {max_length} tokens take {self.bytes:,} bytes of memory, of which {available:,} "
                "are available: lower max_concurrency or max_length"
            )
        shape = (slots, 2 * form.kv_heads, max_length, form.head_dim)
        self.layers = tuple(
            large_pages(torch.empty(shape, dtype=dtype, device=device)).zero_() for _ in range(form.layers)
        )
        # Where one side of an exchange waits, layer by layer.
        self._scratch = torch.zeros(shape[1:], dtype=dtype, device=device)
        self._token_bytes = 2 * form.layers * form.kv_width * dtype.itemsize

    def apply(self, moves: Iterable[Move], tokens: Sequence[int]) -> int:
        """Carry out moves.

        Args:
            moves: in their order.
            tokens: held by each slot before the moves; only these are copied.

        Returns:
            Bytes that were copied into slots.
        """
        held, copied = list(tokens), 0
        for move in moves:
            length = max(held[move.source], held[move.target]) if move.exchange else held[move.source]
            for buffer in self.layers:
                source, target = buffer[move.source, :, :length], buffer[move.target, :, :length]
                if move.exchange:
                    kept = self._scratch[:, :length]
                    kept.copy_(target)
                    target.copy_(source)
                    source.copy_(kept)
                else:
                    target.copy_(source)
            copied += length * self._token_bytes * (2 if move.exchange else 1)
            held[move.source], held[move.target] = held[move.target] if move.exchange else 0, held[move.source]
        return copied

    def copy(self, copies: Iterable[Copy]) -> int:
        """Copy tokens from slot to slot, no target being a source of another.

        Returns:
            Bytes that were copied.
        """
        copied = 0
        for copy in copies:
            for buffer in self.layers:
                buffer[copy.target, :, copy.begin : copy.end].copy_(buffer[copy.source, :, copy.begin : copy.end])
            copied += (copy.end - copy.begin) * self._token_bytes
        return copied

    def repair(self) -> tuple[int, ...]:
        """Zero the slots that hold what is no finite number, for idle moments, and return them."""
        sound = torch.ones(len(self.layers[0]), dtype=torch.bool, device=self._scratch.device)
        for buffer in self.layers:
            # The extremes of numbers with one that is none among them are none either.
            lowest, highest = buffer.flatten(1).aminmax(dim=1)
            sound &= torch.isfinite(lowest) & torch.isfinite(highest)
        broken = tuple(int(slot) for slot in torch.nonzero(~sound).flatten())
        for buffer in self.layers:
            for slot in broken:
                buffer[slot].zero_()
        return broken
