"""Decode steps on a GPU as captured CUDA graphs: one launch per step instead of some hundred.

A graph has fixed addresses and sizes. So steps run in buckets: a bucket is a window of slots and a number of attended
tokens, and a step runs in the smallest bucket that contains it. All buckets are captured when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.memory.slots import Window

Ids = npt.NDArray[np.int64]
DecodeStep = Callable[[int, int, torch.Tensor, torch.Tensor, int], torch.Tensor]
# Makes a replay of a function that reads and writes the same tensors each time.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

# A step of so few slots takes as long as one of a single slot: reading the weights dominates.
_LEAST_WINDOW = 4
# The smallest bucket of attended tokens.
_LEAST_ATTEND = 64


class Bucket(NamedTuple):
    """What a captured step runs: slots `begin` to `end - 1`, attending to `attend` tokens."""

    begin: int
    end: int
    attend: int


def window_buckets(slots: int) -> tuple[Window, ...]:
    """Return the windows that steps run in, in ascending order of their sizes.

    Sizes double, and windows of a size overlap by half, so that a window of n slots is in one of at most max(4, 2n)
    slots or, where it straddles, of four times as many.

    Args:
        slots: Number of slots.
    """
    found: list[Window] = []
    size = min(_LEAST_WINDOW, slots)
    while True:
        step = max(1, size // 2)
        begins = sorted({*range(0, slots - size + 1, step), slots - size})
        found += [Window(begin, begin + size) for begin in begins]
        if size == slots:
            return tuple(found)
        size = min(2 * size, slots)


def attend_buckets(max_length: int) -> tuple[int, ...]:
    """Return the numbers of attended tokens that steps run with, ascending, the last for all tokens of a slot."""
    found, attend = [], _LEAST_ATTEND
    while attend < max_length:
        found.append(attend)
        attend *= 2
    return (*found, max_length)


def graph_count(slots: int, max_length: int) -> int:
    """Number of graphs of a decoder with these slots."""
    return len(window_buckets(slots)) * len(attend_buckets(max_length))


class DecodeGraphs:
    """All buckets of decode steps, captured on construction; none is captured later.

    The graphs share their memory: only one runs at a time. All read their inputs from one tensor and write their logits
    to one tensor, which is read before the next step.

    A row of a bucket outside of the step's window writes to the last position of its slot. No later pass reads it: a
    slot with a token there has as many as it can hold, and a step that writes its own token there reads only that one.

    Args:
        decode: `DecoderModel.decode`.
        slots: Number of slots, all of them free.
        max_length: Number of tokens of a slot.
        vocabulary: Number of logits of a row.
        device: Device of the model.
        capture: Captures a function; by default as a CUDA graph.
    """

    def __init__(
        self, decode: DecodeStep, *, slots: int, max_length: int, vocabulary: int, device: torch.device,
        capture: Capture | None = None,
    ) -> None:  # fmt: skip
        self._decode, self._last_position = decode, max_length - 1
        self._attends = attend_buckets(max_length)
        windows = window_buckets(slots)
        # The smallest bucket that contains a window, by its first and last slot.
        self._window_of = {
            (begin, end): next(each for each in windows if each.begin <= begin and end <= each.end)
            for begin in range(slots)
            for end in range(begin + 1, slots + 1)
        }
        pinned = device.type == "cuda"
        self._host = torch.zeros(2, slots, dtype=torch.int64, pin_memory=pinned)
        self._filled = self._host.numpy()
        self._inputs = torch.zeros(2, slots, dtype=torch.int64, device=device)
        self._logits = torch.zeros(slots, vocabulary, device=device)
        capture = capture or CudaCapture()
        # The largest first: smaller ones fit into the memory that they share.
        buckets = [Bucket(each.begin, each.end, attend) for each in windows[::-1] for attend in self._attends[::-1]]
        self._replays = {bucket: capture(self._step(bucket)) for bucket in buckets}

    def __call__(self, begin: int, end: int, token_ids: Ids, positions: Ids) -> torch.Tensor:
        """Run the step of a window, see `FloverRunner.decode`.

        Returns:
            Logits on the device, [end - begin, vocabulary], valid until the next step.
        """
        window = self._window_of[begin, end]
        longest = int(positions.max()) + 1
        attend = next(each for each in self._attends if longest <= each)
        first, rows = begin - window.begin, len(window)
        tokens, places = self._filled[:, :rows]
        tokens[:], places[:] = 0, self._last_position
        tokens[first : first + end - begin], places[first : first + end - begin] = token_ids, positions
        self._inputs.copy_(self._host, non_blocking=True)
        self._replays[Bucket(window.begin, window.end, attend)]()
        return self._logits[first : first + end - begin]

    def _step(self, bucket: Bucket) -> Callable[[], None]:
        rows = bucket.end - bucket.begin
        tokens, positions, logits = self._inputs[0, :rows], self._inputs[1, :rows], self._logits[:rows]

        def run() -> None:
            logits.copy_(self._decode(bucket.begin, bucket.end, tokens, positions, bucket.attend))

        return run


class CudaCapture:
    """Captures functions as CUDA graphs that share their memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run a function once, as first calls of libraries must not be captured, then capture it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()
            self._stream.synchronize()
            # `torch.cuda.graph` would collect garbage for each of some hundred graphs.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay
