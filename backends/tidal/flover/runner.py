"""A published decoder behind a few calls: read a chunk of a prompt, make a step, both at once, move slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tidal.errors import Internal
from tidal.flover.manifest import WEIGHTS_FILE, FloverManifest
from tidal.flover.memory.available import available_bytes
from tidal.flover.memory.buffers import KeyValueBuffers, kept_type
from tidal.flover.memory.slots import Copy, Move
from tidal.flover.models.decoder import Decoder
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.graphs import StepGraphs
from tidal.flover.models.layer import nothing
from tidal.flover.models.linear import working_type
from tidal.flover.models.weights import DecoderWeights, load_weights
from tidal.flover.tasks.adapter import Adapter
from tidal.flover.tasks.bank import TaskBank

Ids = npt.NDArray[np.int64]
# A step attends to a multiple of so many tokens: to all of the longest running sequence, and to little more.
ATTEND_TOKENS = 64
_WARM_CHUNK = 64


class Reading(NamedTuple):
    """The next chunk of a slot's prompt.

    Attributes:
        slot: that it is read into.
        token_ids: [chunk], at least one.
        start: tokens of the prompt that were read before.
        last: whether the prompt ends here.
    """

    slot: int
    token_ids: Ids
    start: int
    last: bool


class FloverRunner:
    """A decoder with keys and values for a fixed number of slots. One thread at a time may call it.

    Nothing here knows which slots are free: callers say where to read and write. What lies in a slot beyond the
    positions that were written since it was reserved is never attended to.

    Attributes:
        form: of the decoder.
        slots: their number.
        max_length: tokens that a slot holds.
        memory_bytes: of all slots.
        fuses: whether chunks of prompts and a step can be one pass, see `fused`.

    Args:
        form: of the decoder.
        weights: on the device to compute on, of the type to compute in.
        slots: sequences that may hold keys and values at the same time.
        max_length: tokens of a slot.
        available: bytes that keys and values may take; None: no limit.

    Raises:
        InvalidArgument: the slots do not fit into what is available; says the figures.
    """

    def __init__(
        self, form: DecoderForm, weights: DecoderWeights, *, slots: int, max_length: int, available: int | None = None
    ) -> None:
        self.form, self.slots, self.max_length = form, slots, max_length
        self._device = weights.tokens.device
        with torch.inference_mode():
            dtype = kept_type(weights.tokens.dtype, self._device)
            self._buffers = KeyValueBuffers(form, slots, max_length, dtype, self._device, available)
            self._decoder = Decoder(form, weights, self._buffers, max_length)
            self._tasks = TaskBank(form, slots, working_type(weights.tokens), self._device)
        self._step = StepGraphs(self._decoder.step) if self._device.type == "cuda" else self._decoder.step
        self.memory_bytes = self._buffers.bytes
        self.fuses = self._decoder.fused is not None

    @torch.inference_mode()
    def prefill(
        self, slot: int, token_ids: Ids, start: int, *, last: bool = True, task: Adapter | None = None
    ) -> torch.Tensor | None:
        """Read the next chunk of a slot's prompt; chunks may be of any size.

        Args:
            slot: whose keys and values are written at positions `start` to `start + len(token_ids) - 1`.
            token_ids: [chunk], at least one.
            start: tokens of the prompt that were read before.
            last: whether the prompt ends here.
            task: of the sequence, in all of its passes; None: it is the decoder's own.

        Returns:
            The logits behind the last token, float32 [vocabulary], on the CPU and the caller's own; None if `last` is
            not set.
        """
        self._fits(start + len(token_ids) - 1)
        adding = self._tasks.adding([task]) or nothing
        logits = self._decoder.prefill(slot, self._ids(token_ids), start, last=last, adding=adding)
        return None if logits is None else logits.cpu()

    @torch.inference_mode()
    def step(
        self, begin: int, end: int, token_ids: Ids, positions: Ids, tasks: Sequence[Adapter | None] = ()
    ) -> torch.Tensor:
        """One token for every slot of the window, in one pass over the slice of all buffers.

        A hole in the window (a slot that does not run) is computed like the others, and its row means nothing. Its
        keys and values are written too: give it the token 0, and as position the number of tokens that it holds,
        where the next chunk of its prompt overwrites them (0 for a free slot).

        Args:
            begin: the window's first slot.
            end: behind its last.
            token_ids: [end - begin], the last token of each sequence, whose keys and values are not yet held.
            positions: [end - begin], the tokens that each slot holds, which is where that token goes.
            tasks: [end - begin], of each sequence; or none at all.

        Returns:
            Logits of the next tokens, float32 [end - begin, vocabulary], on the CPU and the caller's own.
        """
        last = int(positions.max())
        self._fits(last)
        attend = self.attended(last)
        given = begin, end, self._ids(token_ids), self._ids(positions), attend
        adding = self._tasks.adding(tasks)
        # A captured step has addresses and sizes of its own; tasks come and go.
        return (self._step(*given) if adding is None else self._decoder.step(*given, adding)).cpu()

    @torch.inference_mode()
    def fused(
        self, slots: Ids, token_ids: Ids, positions: Ids, readings: Sequence[Reading]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Chunks of prompts and one token for some slots, in a single pass that reads each weight once for all of them.

        For sequences without tasks, and only where `fuses` says so.

        Args:
            slots: [n] of the sequences that get a token, perhaps none.
            token_ids: [n], the last token of each, see `step`.
            positions: [n], the tokens that each slot holds.
            readings: chunks for other slots, one a slot.

        Returns:
            Logits of the next tokens, float32 [n, vocabulary], and those behind the last token of each prompt that
            ends, [prompts that end, vocabulary].
        """
        fused = self._decoder.fused
        assert fused is not None, "see `fuses`"
        ends = np.cumsum([len(slots), *(len(each.token_ids) for each in readings)])
        places = [np.arange(each.start, each.start + len(each.token_ids)) for each in readings]
        rows = np.concatenate([positions, *places])
        self._fits(int(rows.max()))
        of_slots = np.concatenate([slots, np.repeat([each.slot for each in readings], np.diff(ends))])
        ended = [end - 1 for each, end in zip(readings, ends[1:], strict=True) if each.last]
        logits = fused(
            torch.from_numpy(np.concatenate([token_ids, *(each.token_ids for each in readings)])),
            torch.from_numpy(of_slots),
            torch.from_numpy(rows),
            torch.tensor([*range(len(slots)), *ended], dtype=torch.int32),
        )
        return logits[: len(slots)], logits[len(slots) :]

    def attended(self, position: int) -> int:
        """Tokens that a step looks at whose longest sequence holds `position` of them."""
        return min(self.max_length, (position // ATTEND_TOKENS + 1) * ATTEND_TOKENS)

    @torch.inference_mode()
    def move(self, moves: Iterable[Move], tokens: Sequence[int]) -> int:
        """Carry out the moves of a shuffle.

        Args:
            moves: what `Slots.settle` returned.
            tokens: held by each slot of all before the moves; only these are copied.

        Returns:
            Bytes that were copied.
        """
        return self._buffers.apply(moves, tokens)

    @torch.inference_mode()
    def copy(self, copies: Iterable[Copy]) -> int:
        """Copy tokens from slot to slot, no target being a source of another; returns the bytes copied."""
        return self._buffers.copy(copies)

    @torch.inference_mode()
    def check(self) -> tuple[int, ...]:
        """Zero slots that hold what is no finite number, and return them; for idle moments."""
        return self._buffers.repair()

    def warm_up(self) -> None:
        """Make passes of usual sizes, so that no request pays for the first one. Only while no slot is taken."""
        self.prefill(0, np.zeros(min(_WARM_CHUNK, self.max_length - 1), np.int64), 0)
        for rows in sorted({1, 2, self.slots}):
            if rows <= self.slots:
                self.step(0, rows, np.zeros(rows, np.int64), np.zeros(rows, np.int64))

    def _fits(self, position: int) -> None:
        if position >= self.max_length:  # kernels would write where nothing was allocated
            raise Internal(f"position {position} in slots of {self.max_length} tokens")

    def _ids(self, ids: Ids) -> torch.Tensor:
        return torch.from_numpy(ids).to(self._device)


def open_runner(manifest: FloverManifest, version_dir: Path) -> FloverRunner:
    """Load a version's weights, allocate all of its slots, and warm up.

    torch has one number of threads for a whole process: the one of the manifest.

    Raises:
        InvalidArgument: the slots do not fit into memory; says the figures.
        Unsupported: torch is not installed, which names the extra that brings it.
    """
    device = torch.device("cuda" if manifest.device.kind == "gpu" else "cpu")
    torch.set_num_threads(manifest.threads)
    runner = FloverRunner(
        manifest.form,
        load_weights(version_dir / WEIGHTS_FILE, manifest.form, device),
        slots=manifest.max_concurrency,
        max_length=manifest.max_length,
        available=available_bytes(device),
    )
    runner.warm_up()
    return runner
