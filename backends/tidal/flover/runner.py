"""Runner of a published decoder: prefill, decode, both in one pass, and moves of slots."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tidal.errors import Internal
from tidal.flover.form import DecoderForm, KeyValueType
from tidal.flover.memory.buffers import KeyValueBuffers, cache_dtype, slot_layout
from tidal.flover.memory.plan import in_parts, plan_memory, slots_within
from tidal.flover.memory.slots import SlotCopy, SlotMove
from tidal.flover.models.attention import MixedRows
from tidal.flover.models.decoder import DecoderModel
from tidal.flover.models.graphs import Capture, DecodeGraphs, graph_count
from tidal.flover.models.layer import no_update
from tidal.flover.models.linear import working_type
from tidal.flover.models.weights import DecoderWeights
from tidal.flover.native.tiling import DEFAULT_TILING, Tiling
from tidal.flover.tasks.adapter import LoraAdapter
from tidal.flover.tasks.bank import TaskBank

Ids = npt.NDArray[np.int64]
# Decode steps attend to a multiple of this many tokens: all of the longest running sequence, and little more.
ATTEND_TOKENS = 64
_WARM_UP_CHUNK = 64


class PrefillInput(NamedTuple):
    """A chunk of a prompt, as input of a pass.

    Attributes:
        slot: Slot to prefill.
        token_ids: Token ids of the chunk, [chunk] int64, at least one.
        start: Number of prompt tokens prefilled before.
        last: Whether the prompt ends with this chunk.
    """

    slot: int
    token_ids: Ids
    start: int
    last: bool


class FloverRunner:
    """A decoder with keys and values for a fixed number of slots. One thread at a time may call it.

    The runner does not know which slots are free: the caller says where to read and write. A pass never attends to
    positions of a slot beyond those written for its current sequence.

    Attributes:
        form: Architecture of the decoder.
        slots: Number of slots.
        max_length: Number of tokens of a slot.
        memory_bytes: Size of the keys and values of all slots in bytes, when they are full.
        pages: Memory of a slot by the number of its tokens.
        budget: Most bytes of keys and values at the same time.
        runs_mixed: Whether chunks of prompts and a decode step can share a pass, see `mixed`.
        draft_rows: Most drafted tokens of a pass that the memory was planned for.
        planned_bytes: Bytes that were planned besides the weights, without those that stay free.

    Args:
        form: Architecture of the decoder.
        weights: Weights on the device to compute on, in the type to compute in.
        slots: Number of slots.
        max_length: Number of tokens of a slot.
        available: Bytes that can be allocated besides the weights; None: no limit.
        tiling: Choices of the native library's kernels.
        kv_cache_dtype: Type of keys and values in slots.
        kv_cache_bytes: Most bytes of keys and values, see `budget`; None: those of all slots, as far as available. On a
            GPU it limits the number of slots.

    Raises:
        InvalidArgument: One full slot, on a GPU all slots, and what passes need exceed what is available or
            `kv_cache_bytes`; states the sizes.
    """

    def __init__(
        self, form: DecoderForm, weights: DecoderWeights, *, slots: int, max_length: int, available: int | None = None,
        tiling: Tiling | None = None, kv_cache_dtype: KeyValueType = "auto", kv_cache_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self._device = weights.tokens.device
        dtype = cache_dtype(weights.tokens.dtype, self._device, kv_cache_dtype)
        layout = slot_layout(form, max_length, dtype, self._device)
        slots = slots_within(kv_cache_bytes, layout, slots, max_length, self._device)
        self.form, self.slots, self.max_length = form, slots, max_length
        with torch.inference_mode():
            graphs = graph_count(slots, max_length) if self._device.type == "cuda" else 0
            plan = plan_memory(
                form, slots=slots, max_length=max_length, layout=layout, cached=dtype,
                computed=working_type(weights.tokens), graphs=graphs,
                available=sys.maxsize if available is None else available, limit=kv_cache_bytes,
            )  # fmt: skip
            if available is not None:
                plan.check(available)
            # Slots that all fit need no small pages, which steps of many streams read more slowly.
            whole = plan.keys_and_values == slots * layout.pages.bytes(max_length)
            self._buffers = KeyValueBuffers(form, slots, max_length, dtype, self._device, whole=whole)
            self._model = DecoderModel(form, weights, self._buffers, max_length, tiling or DEFAULT_TILING)
            self._tasks = TaskBank(form, slots, working_type(weights.tokens), self._device)
        self._graphs: DecodeGraphs | None = None
        self.memory_bytes, self.draft_rows = self._buffers.bytes, plan.draft_rows
        self.planned_bytes = plan.bytes - plan.reserve
        self.pages = self._buffers.layout.pages
        self.budget = slots * self.pages.bytes(max_length) if whole else plan.keys_and_values
        self.runs_mixed = self._model.native_pass is not None or self._device.type == "cuda"

    @torch.inference_mode()
    def prefill(
        self, slot: int, token_ids: Ids, start: int, *, last: bool = True, task: LoraAdapter | None = None
    ) -> torch.Tensor | None:
        """Prefill the next chunk of a slot's prompt; chunks may have any size.

        Args:
            slot: Slot whose keys and values are written at positions `start` to `start + len(token_ids) - 1`.
            token_ids: Token ids of the chunk, [chunk], at least one.
            start: Number of prompt tokens prefilled before.
            last: Whether the prompt ends with this chunk.
            task: Task of the sequence, the same in all of its passes; None: the base model.

        Returns:
            Logits after the last token on the runner's device, float32 [vocabulary]; None unless `last`.
        """
        self._check_position(start + len(token_ids) - 1)
        lora = self._tasks.update([task]) or no_update
        ids, count = self._to_device(token_ids), len(token_ids)

        def run(begin: int, end: int) -> torch.Tensor | None:
            return self._model.prefill(slot, ids[begin:end], start + begin, last=last and end == count, lora=lora)

        return in_parts(run, 0, count)[-1]

    @torch.inference_mode()
    def score(self, slot: int, token_ids: Ids) -> torch.Tensor:
        """Prefill a text of the base model, and return the logits after each of its tokens.

        Args:
            slot: Slot to write to.
            token_ids: Token ids of the text, [tokens].

        Returns:
            Logits, float32 [tokens, vocabulary] on the CPU.
        """
        self._check_position(len(token_ids) - 1)
        return self._model.score(slot, self._to_device(token_ids)).cpu()

    @torch.inference_mode()
    def decode(
        self, begin: int, end: int, token_ids: Ids, positions: Ids, tasks: Sequence[LoraAdapter | None] = ()
    ) -> torch.Tensor:
        """Decode one token for every slot of a window, in one pass over the slice of all buffers.

        A hole in the window (a slot that does not run) is computed like the others, and its logits have no meaning.
        Its keys and values are written too: give it the token 0, and as position the number of tokens it holds, where
        the next chunk of its prompt overwrites them (0 for a free slot).

        Args:
            begin: First slot of the window.
            end: Slot after the last.
            token_ids: Last token of each sequence, whose keys and values are not held yet, [end - begin].
            positions: Number of tokens held by each slot, where that token is written, [end - begin].
            tasks: Task of each sequence, [end - begin]; empty: all use the base model.

        Returns:
            Logits of the next tokens on the runner's device, float32 [end - begin, vocabulary], valid until the next
            step: a captured step writes them to the same memory each time.
        """
        last = int(positions.max())
        self._check_position(last)
        # A captured step has fixed addresses and sizes, and tasks change.
        if self._graphs is not None and all(task is None for task in tasks):
            return self._graphs(begin, end, token_ids, positions)
        ids, places, attend = self._to_device(token_ids), self._to_device(positions), self.attended(last)

        def run(first: int, after: int) -> torch.Tensor:
            rows = slice(first - begin, after - begin)
            lora = self._tasks.update(tasks[rows]) or no_update
            return self._model.decode(first, after, ids[rows], places[rows], attend, lora)

        parts = in_parts(run, begin, end)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @torch.inference_mode()
    def mixed(
        self, slots: Ids, token_ids: Ids, positions: Ids, chunks: Sequence[PrefillInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefill chunks and decode in a single pass, which reads each weight once.

        Only if `runs_mixed`, and for sequences of the base model.

        Args:
            slots: Slots of the sequences to decode, [rows], perhaps none; several rows of a slot are consecutive.
            token_ids: Last token of each of them, see `decode`, and the tokens that may follow it, [rows].
            positions: Number of tokens held by each of them, and the positions after them, [rows].
            chunks: Chunks for other slots, one per slot.

        Returns:
            Logits of the next tokens, float32 [rows, vocabulary], and those after the last token of each prompt that
            ends, [prompts that end, vocabulary].
        """
        ends = np.cumsum([len(slots), *(len(chunk.token_ids) for chunk in chunks)])
        ranges = [(chunk.slot, chunk.start, chunk.start + len(chunk.token_ids)) for chunk in chunks]
        row_positions = np.concatenate([positions, *(np.arange(start, end) for _, start, end in ranges)])
        self._check_position(int(row_positions.max()))
        chunk_slots = np.array([chunk.slot for chunk in chunks], np.int64)
        row_slots = np.concatenate([slots, np.repeat(chunk_slots, np.diff(ends))])
        last_rows = [int(end) - 1 for chunk, end in zip(chunks, ends[1:], strict=True) if chunk.last]
        attend = self.attended(int(positions.max())) if len(slots) else 0
        logits = self._model.mixed(
            self._to_device(np.concatenate([token_ids, *(chunk.token_ids for chunk in chunks)])),
            self._to_device(row_positions),
            MixedRows(torch.from_numpy(row_slots), len(slots), attend, ranges),
            [*range(len(slots)), *last_rows],
        )
        return logits[: len(slots)], logits[len(slots) :]

    def attended(self, position: int) -> int:
        """Number of tokens that a decode step attends to if its longest sequence holds `position` tokens."""
        return min(self.max_length, (position // ATTEND_TOKENS + 1) * ATTEND_TOKENS)

    @torch.inference_mode()
    def move_slots(self, moves: Iterable[SlotMove], tokens: Sequence[int], *, release: bool = False) -> int:
        """Carry out the moves of a shuffle; returns the bytes copied.

        Args:
            moves: Moves returned by `SlotTable.compact`.
            tokens: Number of tokens held by each slot before the moves; only these are copied.
            release: Whether to release what the moved slots do not hold afterwards.
        """
        return self._buffers.move(moves, tokens, release=release)

    @torch.inference_mode()
    def copy_slots(self, copies: Sequence[SlotCopy], *, release: Collection[int] = ()) -> int:
        """Copy tokens between slots, one copy after the other; returns the bytes copied.

        Args:
            copies: Copies to carry out.
            release: Slots to release after them.
        """
        return self._buffers.copy(copies, release=release)

    @torch.inference_mode()
    def commit(self, tokens: Mapping[int, int]) -> None:
        """Write zeros to slots, a number of tokens by slot: passes that are measured then read as much memory."""
        self._buffers.commit(tokens)

    def clear(self, slot: int, begin: int, end: int) -> None:
        """Have the operating system clear some bytes of the memory of a slot that has no tokens."""
        self._buffers.clear(slot, begin, end)

    def release(self, kept: Mapping[int, int]) -> None:
        """Give memory of slots to the operating system, but for a number of tokens by slot."""
        self._buffers.release(kept)

    @torch.inference_mode()
    def repair(self, written: Sequence[int]) -> tuple[int, ...]:
        """Clear slots with NaN or infinite values, and return them; for idle moments.

        Args:
            written: Number of tokens, by slot, that may have been written.
        """
        return self._buffers.repair(written)

    def warm_up(self) -> None:
        """Run passes of usual sizes, so that no request pays for the first one. Only while all slots are free.

        On a GPU all decode steps of the base model are captured. On a CPU the memory of all slots is released after it.
        """
        self.prefill(0, np.zeros(min(_WARM_UP_CHUNK, self.max_length - 1), np.int64), 0)
        if self._device.type == "cuda":
            self.capture()
            return
        for rows in sorted({1, 2, self.slots}):
            if rows <= self.slots:
                self.decode(0, rows, np.zeros(rows, np.int64), np.zeros(rows, np.int64))
        self.release(dict.fromkeys(range(self.slots), 0))

    @torch.inference_mode()
    def capture(self, capture: Capture | None = None) -> None:
        """Capture all decode steps of the base model. Only while all slots are free.

        Args:
            capture: See `DecodeGraphs`.
        """
        self._graphs = DecodeGraphs(
            self._model.decode, slots=self.slots, max_length=self.max_length, vocabulary=self.form.vocabulary,
            device=self._device, capture=capture,
        )  # fmt: skip

    def _check_position(self, position: int) -> None:
        if position >= self.max_length:  # kernels would write outside of the slot
            raise Internal(f"position {position} exceeds slots of {self.max_length} tokens")

    def _to_device(self, ids: Ids) -> torch.Tensor:
        return torch.from_numpy(ids).to(self._device)
