"""The key-value cache of all slots: tensors that are allocated once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from tidal.flover.form import DecoderForm, KeyValueType
from tidal.flover.memory.slots import SlotCopy, SlotMove
from tidal.flover.native.library import large_pages, usable


def cache_dtype(computed: torch.dtype, device: torch.device, kept: KeyValueType = "auto") -> torch.dtype:
    """Return the type of keys and values for a decoder computed in `computed`.

    Without the native library it is float32 on a CPU: torch's attention of single tokens in bfloat16 is slower than
    reading twice the bytes, and has no integers.
    """
    if kept == "int8" and usable(device) is not None:
        return torch.int8
    return torch.float32 if device.type == "cpu" and usable(device) is None else computed


def buffer_bytes(form: DecoderForm, slots: int, max_length: int, dtype: torch.dtype) -> int:
    """Return the bytes that `KeyValueBuffers` allocate for these sizes."""
    return _token_bytes(form, dtype) * max_length * (form.layers * slots + 1)


def _token_bytes(form: DecoderForm, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values in one layer: integers have a scale for each head."""
    scale = torch.float32.itemsize if dtype == torch.int8 else 0
    return 2 * form.kv_heads * (form.head_dim * dtype.itemsize + scale)


class KeyValueBuffers:
    """Keys and values of every layer, contiguous [slots, 2 * kv_heads, max_length, head_dim]: keys, then values.

    With int8 a number is integer * scale, and each token has a scale for its keys and one for its values of each head.

    So a window of slots is a slice of memory, and the keys and values of a token are written at once. Nothing is
    allocated after construction. All values stay finite: attention multiplies masked ones by 0, and 0 times infinity
    would spread.

    Attributes:
        layers: Keys and values of each layer.
        scales: Scales of each layer, float32 [slots, 2 * kv_heads, max_length]; empty unless they are integers.
        bytes: Size of all tensors in bytes.

    Args:
        form: Architecture of the decoder.
        slots: Number of slots.
        max_length: Number of tokens of a slot.
        dtype: Type of the values: float32, bfloat16 or int8.
        device: Device that holds them.
    """

    def __init__(
        self,
        form: DecoderForm,
        slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.bytes = buffer_bytes(form, slots, max_length, dtype)
        shape = (slots, 2 * form.kv_heads, max_length, form.head_dim)
        self.layers = tuple(
            large_pages(torch.empty(shape, dtype=dtype, device=device)).zero_() for _ in range(form.layers)
        )
        self.scales = tuple(
            torch.zeros(shape[:3], device=device) for _ in range(form.layers if dtype == torch.int8 else 0)
        )
        # Each holds one side of an exchange, layer by layer.
        self._scratch = torch.zeros(shape[1:], dtype=dtype, device=device)
        self._scale_scratch = torch.zeros(shape[1:3] if self.scales else 0, device=device)
        self._token_bytes = form.layers * _token_bytes(form, dtype)

    def move(self, moves: Iterable[SlotMove], tokens: Sequence[int]) -> int:
        """Move the contents of slots.

        Args:
            moves: Moves in the order to carry them out.
            tokens: Number of tokens held by each slot before the moves; only these are copied.

        Returns:
            Number of bytes copied.
        """
        held, copied = list(tokens), 0
        for move in moves:
            length = max(held[move.source], held[move.target]) if move.exchange else held[move.source]
            for buffer, scratch in self._all():
                source, target = buffer[move.source, :, :length], buffer[move.target, :, :length]
                if move.exchange:
                    kept = scratch[:, :length]
                    kept.copy_(target)
                    target.copy_(source)
                    source.copy_(kept)
                else:
                    target.copy_(source)
            copied += length * self._token_bytes * (2 if move.exchange else 1)
            held[move.source], held[move.target] = held[move.target] if move.exchange else 0, held[move.source]
        return copied

    def copy(self, copies: Iterable[SlotCopy]) -> int:
        """Copy tokens between slots; no target is the source of another copy.

        Returns:
            Number of bytes copied.
        """
        copied = 0
        for copy in copies:
            for buffer, _ in self._all():
                buffer[copy.target, :, copy.begin : copy.end].copy_(buffer[copy.source, :, copy.begin : copy.end])
            copied += (copy.end - copy.begin) * self._token_bytes
        return copied

    def repair(self) -> tuple[int, ...]:
        """Clear slots with NaN or infinite values, and return them; for idle moments."""
        sound = torch.ones(len(self.layers[0]), dtype=torch.bool, device=self._scratch.device)
        for buffer in self.scales or self.layers:  # integers are finite
            # The extremes of values with a NaN among them are NaN.
            lowest, highest = buffer.flatten(1).aminmax(dim=1)
            sound &= torch.isfinite(lowest) & torch.isfinite(highest)
        broken = tuple(int(slot) for slot in torch.nonzero(~sound).flatten())
        for buffer, _ in self._all():
            for slot in broken:
                buffer[slot].zero_()
        return broken

    def _all(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All tensors of slots, each with its scratch."""
        yield from ((layer, self._scratch) for layer in self.layers)
        yield from ((scales, self._scale_scratch) for scales in self.scales)
