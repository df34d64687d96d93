"""A published decoder behind three calls: read a chunk of a prompt, make a step, move slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.manifest import WEIGHTS_FILE, FloverManifest
from tidal.flover.memory.available import available_bytes
from tidal.flover.memory.buffers import KeyValueBuffers, kept_type
from tidal.flover.memory.slots import Move
from tidal.flover.models.decoder import Decoder
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.graphs import StepGraphs
from tidal.flover.models.weights import DecoderWeights, load_weights

Ids = npt.NDArray[np.int64]
# A step attends to a multiple of so many tokens: to all of the longest running sequence, and to little more.
ATTEND_TOKENS = 64
_WARM_CHUNK = 64


class FloverRunner:
    """A decoder with keys and values for a fixed number of slots. One thread at a time may call it.

    Nothing here knows which slots are free: callers say where to read and write. What lies in a slot beyond the
    positions that were written since it was reserved is never attended to.

    Attributes:
        form: of the decoder.
        slots: their number.
        max_length: tokens that a slot holds.
        memory_bytes: of all slots.

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
        self._step = StepGraphs(self._decoder.step) if self._device.type == "cuda" else self._decoder.step
        self.memory_bytes = self._buffers.bytes

    @torch.inference_mode()
    def prefill(self, slot: int, token_ids: Ids, start: int, *, last: bool = True) -> torch.Tensor | None:
        """Read the next chunk of a slot's prompt; chunks may be of any size.

        Args:
            slot: whose keys and values are written at positions `start` to `start + len(token_ids) - 1`.
            token_ids: [chunk], at least one.
            start: tokens of the prompt that were read before.
            last: whether the prompt ends here.

        Returns:
            The logits behind the last token, float32 [vocabulary], on the CPU and the caller's own; None if `last` is
            not set.
        """
        logits = self._decoder.prefill(slot, self._ids(token_ids), start, last=last)
        return None if logits is None else logits.cpu()

    @torch.inference_mode()
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
            Logits of the next tokens, float32 [end - begin, vocabulary], on the CPU and the caller's own.
        """
        attend = self.attended(int(positions.max()))
        return self._step(begin, end, self._ids(token_ids), self._ids(positions), attend).cpu()

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
    def check(self) -> tuple[int, ...]:
        """Zero slots that hold what is no finite number, and return them; for idle moments."""
        return self._buffers.repair()

    def warm_up(self) -> None:
        """Make passes of usual sizes, so that no request pays for the first one. Only while no slot is taken."""
        self.prefill(0, np.zeros(min(_WARM_CHUNK, self.max_length - 1), np.int64), 0)
        for rows in sorted({1, 2, self.slots}):
            if rows <= self.slots:
                self.step(0, rows, np.zeros(rows, np.int64), np.zeros(rows, np.int64))

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
