"""A published decoder behind three calls: read a chunk of a prompt, make a step, move slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.manifest import FloverManifest
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.memory.slots import Move
from tidal.flover.models.form import DecoderForm

Ids = npt.NDArray[np.int64]
# A step attends to a multiple of so many tokens: to all of the longest running sequence, and to little more.
ATTEND_TOKENS = 64


class FloverRunner:
    """A decoder with keys and values for a fixed number of slots. One thread at a time may call it.

    Nothing here knows which slots are free: callers say where to read and write. What lies in a slot beyond the
    positions that were written since it was reserved is never attended to.

    Attributes:
        form: of the decoder.
        slots: their number.
        max_length: tokens that a slot holds.
        memory_bytes: of all slots.
    """

    form: DecoderForm
    slots: int
    max_length: int
    memory_bytes: int

    def __init__(self, buffers: KeyValueBuffers) -> None:
        """Use `open_runner`."""
        self._buffers = buffers

    def prefill(self, slot: int, token_ids: Ids, start: int, *, last: bool = True) -> torch.Tensor | None:
        """Read the next chunk of a slot's prompt; chunks may be of any size.

        Args:
            slot: whose keys and values are written at positions `start` to `start + len(token_ids) - 1`.
            token_ids: [chunk], at least one.
            start: tokens of the prompt that were read before.
            last: whether the prompt ends here.

        Returns:
            The logits behind the last token, float32 [vocabulary], the caller's own; None if `last` is not set.
        """
        raise NotImplementedError

    def step(self, begin: int, end: int, token_ids: Ids, positions: Ids) -> torch.Tensor:
        """One token for every slot of the window, in one pass over the slice of all buffers.

        A hole in the window (a slot that does not run) is computed like the others, and its row means nothing. Its
        keys and values are written too: give it the token 0, and as position the number of tokens that it holds,
        where the next chunk of its prompt overwrites them (0 for a free slot).

        Args:
            begin: the window's first slot.
            end: behind its last.
            token_ids: [end - begin], the last token of each sequence, whose keys and values are not yet held.
            positions: [end - begin], the tokens that each slot holds, which is where that token goes.

        Returns:
            Logits of the next tokens, float32 [end - begin, vocabulary]; good until the next call of `step`.
        """
        raise NotImplementedError

    def move(self, moves: Iterable[Move], tokens: Sequence[int]) -> int:
        """Carry out the moves of a shuffle.

        Args:
            moves: what `Slots.settle` returned.
            tokens: held by each slot of all before the moves; only these are copied.

        Returns:
            Bytes that were copied.
        """
        return self._buffers.apply(moves, tokens)

    def check(self) -> tuple[int, ...]:
        """Zero slots that hold what is no finite number, and return them; for idle moments."""
        return self._buffers.repair()

    def warm_up(self) -> None:
        """Make one pass of every usual shape, so that no request pays for the first one."""


def open_runner(manifest: FloverManifest, version_dir: Path) -> FloverRunner:
    """Load a version's weights, allocate all of its slots, and warm up.

    Raises:
        InvalidArgument: the slots do not fit into memory; says the figures.
        Unsupported: torch is not installed, which names the extra that brings it.
    """
    raise NotImplementedError
