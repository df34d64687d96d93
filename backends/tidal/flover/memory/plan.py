"""What a decoder needs of a device's memory besides its weights, and passes split into parts where memory is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from tidal.errors import InvalidArgument
from tidal.flover.form import DecoderForm
from tidal.flover.memory.buffers import SlotLayout, layer_bytes
from tidal.flover.policies.speculation import MOST_DRAFT_ROWS, MOST_DRAFTED

_Result = TypeVar("_Result")
# Rows of the largest pass besides those of all slots: the scheduler's largest chunks of prompts, which are more than
# the drafted tokens of a step.
_CHUNK_ROWS = 512
# Kernels of a captured layer, and memory of a captured kernel: estimates that no GPU has confirmed yet.
_KERNELS_PER_LAYER, _BYTES_PER_KERNEL = 16, 2048
# Share of what is available, and least bytes on a GPU, that stay free: for libraries, for tasks, which are
# loaded later, and for what is lost between blocks.
_RESERVE_SHARE, _GPU_RESERVE = 0.05, 256 << 20
# Most bytes of the logits of drafted tokens: 128 rows of a vocabulary of 128k tokens in float32.
_DRAFT_LOGITS = 64 << 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose, weights excluded, as they are loaded before.

    Attributes:
        slots: Number of slots.
        max_length: Number of tokens of a slot.
        least: Keys and values without which nothing is served: those of one full slot, on a GPU of all.
        keys_and_values: Most keys and values at the same time, the budget of the slots.
        moving: Keys and values of a layer of two slots: those of a slot that is moved exist twice.
        logits: Logits of all slots, as they are computed, in float32, and as they are read.
        draft_rows: Most drafted tokens that a pass checks.
        draft_logits: Logits after these, as they are computed and in float32.
        activations: Tensors of the largest pass that exist at the same time, an upper bound.
        graphs: Captured decode steps; 0 on a CPU.
        reserve: Bytes that stay free.
    """

    slots: int
    max_length: int
    least: int
    keys_and_values: int
    moving: int
    logits: int
    draft_rows: int
    draft_logits: int
    activations: int
    graphs: int
    reserve: int

    @property
    def bytes(self) -> int:
        """All of them together."""
        return self.fixed + self.keys_and_values + self.logits + self.draft_logits

    @property
    def fixed(self) -> int:
        """Those that do not depend on the logits and the number of slots, or hardly."""
        return self.moving + self.activations + self.graphs + self.reserve

    def check(self, available: int) -> None:
        """Check that the plan fits.

        Args:
            available: Bytes that can be allocated.

        Raises:
            InvalidArgument: It does not; states each part, and how many slots would fit.
        """
        if self.bytes <= available:
            return
        whole = self.least if self.graphs else 0  # a GPU commits all slots
        left = available - self.fixed - (self.least - whole)
        fitting = max(0, int(left / ((whole + self.logits) / self.slots)))
        advice = f"lower max_concurrency to {fitting}, or max_length" if fitting else "lower max_length"
        full = "" if self.graphs else ", one of them full,"
        parts = {
            "keys and values": self.keys_and_values, "moved slots": self.moving, "logits": self.logits,
            "logits of drafts": self.draft_logits, "activations": self.activations, "captured steps": self.graphs,
            "reserve": self.reserve,
        }  # fmt: skip
        listed = ", ".join(f"{name} {size:,}" for name, size in parts.items() if size)
        raise InvalidArgument(
            f"{self.slots} slots of {self.max_length} tokens{full} take {self.bytes:,} bytes of memory ({listed}), but "
            f"{available:,} are available: {advice}"
        )


def slots_within(limit: int | None, layout: SlotLayout, slots: int, max_length: int, device: torch.device) -> int:
    """Return the number of slots to allocate: all on a CPU, where they share the limit, and as many as fit on a GPU.

    Args:
        limit: Most bytes of keys and values; None: no limit.
        layout: Sizes of a slot.
        slots: Number of slots.
        max_length: Number of tokens of a slot.
        device: Device that holds them.

    Raises:
        InvalidArgument: The limit is too small for one full slot; states the size that it takes.
    """
    if limit is None:
        return slots
    one = layout.pages.bytes(max_length)
    if limit < one:
        raise InvalidArgument(
            f"kv_cache_mb is {limit / _MIB:g}; a sequence of {max_length} tokens, the max_length, takes "
            f"{one / _MIB:.2f} MiB: raise kv_cache_mb to at least that, or lower max_length"
        )
    return slots if device.type == "cpu" else min(slots, limit // one)


def plan_memory(
    form: DecoderForm, *, slots: int, max_length: int, layout: SlotLayout, cached: torch.dtype,
    computed: torch.dtype, graphs: int, available: int, limit: int | None = None,
) -> MemoryPlan:  # fmt: skip
    """Plan the memory of a decoder whose weights are loaded.

    Keys and values take what is left, up to those of all slots. Drafts take up to 64 MiB of it for their logits, where
    one full slot remains, on a GPU all slots: without them texts are the same, so they are the first to be given up.

    Args:
        form: Architecture of the decoder.
        slots: Number of slots.
        max_length: Number of tokens of a slot.
        layout: Sizes of a slot.
        cached: Type of keys and values.
        computed: Type of activations.
        graphs: Number of decode steps to capture; 0 on a CPU.
        available: Bytes that can be allocated now.
        limit: Most bytes of keys and values, at least those of one full slot; None: no limit.
    """
    rows = slots + min(_CHUNK_ROWS, slots * max_length)
    gated = 2 if form.gated else 1
    # Of a row: residual, norm, output and sum; queries, keys and values; the hidden layer before and after activation.
    row = 4 * form.width + (form.heads + 2 * form.kv_heads) * form.head_dim + 2 * gated * form.widest_inner
    if form.experts is not None:  # input and output of an expert, scores, and the numbers and factors of its experts
        row += 2 * form.width + (1 + 4) * len(form.experts.widths)
    # Scores and mask of a chunk, where no fused kernel runs.
    scores = min(_CHUNK_ROWS, max_length) * max_length * (form.heads + 1)
    reserve = max(int(available * _RESERVE_SHARE), _GPU_RESERVE if graphs else 0)
    one = layout.pages.bytes(max_length)
    least = slots * one if graphs else one
    moving = 2 * layer_bytes(form, layout.capacity, cached)
    logits = slots * form.vocabulary * (8 + computed.itemsize)
    activations = rows * row * computed.itemsize + scores * cached.itemsize
    captured = graphs * form.layers * _KERNELS_PER_LAYER * _BYTES_PER_KERNEL
    left = available - moving - logits - activations - captured - reserve
    # Logits of another type than float32 exist in both; nothing is copied to read those of drafts.
    draft = form.vocabulary * (4 if computed == torch.float32 else 4 + computed.itemsize)
    draft_rows = max(0, min(MOST_DRAFT_ROWS, MOST_DRAFTED * slots, min(_DRAFT_LOGITS, left - least) // draft))
    most = slots * one if limit is None else min(limit, slots * one)
    keys_and_values = max(least, min(most, left - draft_rows * draft))
    return MemoryPlan(
        slots=slots,
        max_length=max_length,
        least=least,
        keys_and_values=keys_and_values,
        moving=moving,
        logits=logits,
        draft_rows=draft_rows,
        draft_logits=draft_rows * draft,
        activations=activations,
        graphs=captured,
        reserve=reserve,
    )


def in_parts(run: Callable[[int, int], _Result], begin: int, end: int) -> list[_Result]:
    """Run a pass over `begin` to `end - 1`; where memory is short, over both halves, one after another.

    Keys and values have a budget that is planned at load, so a pass can lack only memory that grows with its rows.

    Args:
        run: The pass over a range; it may run again over the same one.
        begin: Begin of the range.
        end: End of the range, above `begin`.

    Returns:
        Results of the parts, in order.

    Raises:
        torch.OutOfMemoryError: There is too little memory for a single row.
    """
    try:
        return [run(begin, end)]
    except torch.OutOfMemoryError:
        if end - begin == 1:
            raise
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    middle = (begin + end) // 2
    return [*in_parts(run, begin, middle), *in_parts(run, middle, end)]
