"""The key-value cache of all slots: tensors whose addresses are allocated once."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from tidal.flover.form import DecoderForm, KeyValueType
from tidal.flover.memory.mapping import PAGE_BYTES, MappedTensor
from tidal.flover.memory.slots import SlotCopy, SlotMove
from tidal.flover.native.library import usable
from tidal.flover.policies.pages import SlotPages, TokenRuns

_SCALE_BYTES = torch.float32.itemsize


def cache_dtype(computed: torch.dtype, device: torch.device, kept: KeyValueType = "auto") -> torch.dtype:
    """Return the type of keys and values for a decoder computed in `computed`.

    Without the native library it is float32 on a CPU: torch's attention of single tokens in bfloat16 is slower than
    reading twice the bytes, and has no integers.
    """
    if kept == "int8" and usable(device) is not None:
        return torch.int8
    return torch.float32 if device.type == "cpu" and usable(device) is None else computed


def buffer_bytes(form: DecoderForm, slots: int, max_length: int, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of slots that are full."""
    return layer_bytes(form, max_length, dtype) * form.layers * slots


def layer_bytes(form: DecoderForm, tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of the keys and values of some tokens in one layer."""
    return _token_bytes(form, dtype) * tokens


def _token_bytes(form: DecoderForm, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values in one layer: integers have a scale for each head."""
    return 2 * form.kv_heads * (form.head_dim * dtype.itemsize + (_SCALE_BYTES if dtype == torch.int8 else 0))


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Sizes of a slot in memory.

    Attributes:
        capacity: Number of tokens that a slot has addresses for.
        pages: Memory of a slot by the number of its tokens.
    """

    capacity: int
    pages: SlotPages


def slot_layout(
    form: DecoderForm, max_length: int, dtype: torch.dtype, device: torch.device, *, whole: bool = False
) -> SlotLayout:
    """Return the sizes of a slot.

    On a CPU a slot has addresses for a few more tokens than `max_length`, so that each page belongs to the keys or
    values of one head.

    Args:
        form: Architecture of the decoder.
        max_length: Largest number of tokens of a slot.
        dtype: Type of keys and values.
        device: Device that holds them.
        whole: Whether slots are committed as a whole, as they always are on a GPU.
    """
    heads, token = 2 * form.kv_heads, form.head_dim * dtype.itemsize
    layer = _token_bytes(form, dtype)
    if device.type != "cpu":
        return SlotLayout(max_length, SlotPages((TokenRuns(form.layers, layer, layer * max_length),)))
    units = [PAGE_BYTES // math.gcd(token, PAGE_BYTES)]
    runs = [TokenRuns(form.layers * heads, token, PAGE_BYTES)]
    # The scales of a head fill pages of their own if a page is not more than a slot has; else those of all heads do.
    apart = max_length * _SCALE_BYTES >= PAGE_BYTES
    scales = _SCALE_BYTES if apart else heads * _SCALE_BYTES
    if dtype == torch.int8:
        units.append(PAGE_BYTES // math.gcd(scales, PAGE_BYTES))
    capacity = -(-max_length // math.lcm(*units)) * math.lcm(*units)
    if dtype == torch.int8:
        count, page = (form.layers * heads, PAGE_BYTES) if apart else (form.layers, capacity * scales)
        runs.append(TokenRuns(count, scales, page))
    if whole:
        runs = [TokenRuns(form.layers, layer, layer * capacity)]
    return SlotLayout(capacity, SlotPages(tuple(runs), at_once=whole))


class KeyValueBuffers:
    """Keys and values of every layer, contiguous [slots, 2 * kv_heads, capacity, head_dim]: keys, then values.

    With int8 a number is integer * scale, and each token has a scale for its keys and one for its values of each head.

    So a window of slots is a slice of memory, and the keys and values of a token are written at once. No address
    changes after construction. On a CPU memory is committed when it is first written, and `release` gives it back
    (vAttention, Prabhu et al., 2025). All values stay finite: attention multiplies masked ones by 0, and
    0 times infinity would spread.

    Attributes:
        layers: Keys and values of each layer.
        scales: Scales of each layer, float32 [slots, 2 * kv_heads, capacity]; empty unless they are integers.
        layout: Sizes of a slot.
        bytes: Size of the keys and values of full slots in bytes.

    Args:
        form: Architecture of the decoder.
        slots: Number of slots.
        max_length: Largest number of tokens of a slot.
        dtype: Type of the values: float32, bfloat16 or int8.
        device: Device that holds them.
        whole: Whether to commit slots as a whole, with large pages; otherwise by the token, with small ones.

    Raises:
        InvalidArgument: The operating system refuses the address space.
    """

    def __init__(
        self, form: DecoderForm, slots: int, max_length: int, dtype: torch.dtype, device: torch.device, *,
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.bytes = buffer_bytes(form, slots, max_length, dtype)
        self.layout = slot_layout(form, max_length, dtype, device, whole=whole)
        self._whole = whole
        self._mapped: dict[int, MappedTensor] = {}  # by address
        shape = (slots, 2 * form.kv_heads, self.layout.capacity, form.head_dim)
        self.layers = tuple(self._zeros(shape, dtype, device) for _ in range(form.layers))
        scaled = form.layers if dtype == torch.int8 else 0
        self.scales = tuple(self._zeros(shape[:3], torch.float32, device) for _ in range(scaled))
        # Each holds one side of an exchange, layer by layer.
        self._scratch = self._zeros(shape[1:], dtype, device)
        self._scale_scratch = self._zeros(shape[1:3] if scaled else (1,), torch.float32, device)
        self._token_bytes = form.layers * _token_bytes(form, dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        mapped = MappedTensor(shape, dtype, large_pages=self._whole)
        self._mapped[mapped.tensor.data_ptr()] = mapped
        return mapped.tensor

    def move(self, moves: Iterable[SlotMove], tokens: Sequence[int], *, release: bool = False) -> int:
        """Move the contents of slots.

        Args:
            moves: Moves in the order to carry them out.
            tokens: Number of tokens held by each slot before the moves; only these are copied.
            release: Whether to release what the moved slots do not hold afterwards, layer by layer, so that at most
                the tokens of one layer are committed twice.

        Returns:
            Number of bytes copied.
        """
        held, copied = list(tokens), 0
        for move in moves:
            moved, exchanged = held[move.source], held[move.target] if move.exchange else 0
            for buffer, scratch in self._all():
                source, target, kept = buffer[move.source], buffer[move.target], scratch[:, :exchanged]
                kept.copy_(target[:, :exchanged])
                target[:, :moved].copy_(source[:, :moved])
                source[:, :exchanged].copy_(kept)
                if release:
                    self._release(buffer, {move.target: moved, move.source: exchanged})
            copied += (moved + exchanged) * self._token_bytes
            held[move.source], held[move.target] = exchanged, moved
        return copied

    def copy(self, copies: Sequence[SlotCopy], *, release: Collection[int] = ()) -> int:
        """Copy tokens between slots, one copy after the other.

        Args:
            copies: Copies to carry out.
            release: Slots to release after them, layer by layer.

        Returns:
            Number of bytes copied.
        """
        for buffer, _ in self._all():
            for copy in copies:
                buffer[copy.target, :, copy.begin : copy.end].copy_(buffer[copy.source, :, copy.begin : copy.end])
            self._release(buffer, dict.fromkeys(release, 0))
        return sum(copy.end - copy.begin for copy in copies) * self._token_bytes

    def commit(self, tokens: Mapping[int, int]) -> None:
        """Write zeros to slots: memory that was never written is read from a cache, whatever its size.

        Args:
            tokens: Number of tokens to write, by slot.
        """
        for slot, count in tokens.items():
            for buffer, _ in self._all():
                buffer[slot, :, :count].zero_()

    def clear(self, slot: int, begin: int, end: int) -> None:
        """Have the operating system clear a part of the memory of a slot that has no tokens.

        Args:
            slot: The slot.
            begin: First byte, counted over all of its tensors.
            end: Byte after the last.
        """
        for buffer, _ in self._all():
            memory = buffer[slot].view(torch.uint8).view(-1)
            if begin < len(memory) and end > 0:
                memory[max(0, begin) : end : PAGE_BYTES].zero_()
            begin, end = begin - len(memory), end - len(memory)

    def release(self, kept: Mapping[int, int]) -> None:
        """Give memory of slots to the operating system; on a GPU nothing is released.

        Args:
            kept: Number of tokens to keep, by slot.
        """
        for buffer, _ in self._all():
            self._release(buffer, kept)

    def repair(self, written: Sequence[int]) -> tuple[int, ...]:
        """Clear slots with NaN or infinite values, and return them; for idle moments.

        Args:
            written: Number of tokens, by slot, that may have been written: only these are read.
        """
        broken = []
        for slot, tokens in enumerate(written):
            for buffer in self.scales or self.layers:  # integers are finite
                # The extremes of values with a NaN among them are NaN.
                if tokens and not all(map(torch.isfinite, torch.aminmax(buffer[slot, :, :tokens]))):
                    broken.append(slot)
                    break
        for buffer, _ in self._all():
            for slot in broken:
                buffer[slot, :, : written[slot]].zero_()
        return tuple(broken)

    def _release(self, buffer: torch.Tensor, kept: Mapping[int, int]) -> None:
        """Release the pages of slots behind their first tokens in one tensor."""
        mapped = self._mapped.get(buffer.data_ptr())
        if mapped is None or not kept:
            return
        size, run = buffer[0].nbytes, buffer[0, 0].nbytes
        if len(kept) == len(buffer) and not any(kept.values()):  # large pages that are released in parts become small
            mapped.release(0, len(buffer) * size)
            return
        for slot, tokens in kept.items():
            begin, end = slot * size, (slot + 1) * size
            if not tokens:
                mapped.release(begin, end)
                continue
            first = -(-tokens * (run // buffer.shape[2]) // PAGE_BYTES) * PAGE_BYTES
            if not self._whole and run % PAGE_BYTES == 0 and first < run:  # else runs share pages
                for row in range(begin, end, run):
                    mapped.release(row + first, row + run)

    def _all(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All tensors of slots, each with its scratch."""
        yield from ((layer, self._scratch) for layer in self.layers)
        yield from ((scales, self._scale_scratch) for scales in self.scales)
