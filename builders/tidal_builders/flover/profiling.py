"""Measures decode steps and prefill passes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from tidal.flover.manifest import FloverProfile
from tidal.flover.runner import FloverRunner
from tidal.profiles import LatencyProfile
from tidal_builders.timing import Call, Progress, Timing, measure

_SHORTEST = 64
_CHUNKS = (1, 16, 64, 256)
_ROUNDS = 4

# "decode" or "prefill", attended or prefilled tokens, slots.
_Cell = tuple[str, int, int]


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Return `first`, its doubles below `last`, and `last`."""
    values = []
    while first < last:
        values.append(first)
        first *= 2
    return (*values, last)


def measure_profile(runner: FloverRunner, *, threads: int, seconds: float, progress: Progress) -> FloverProfile:
    """Measure decode steps by attended tokens and slots, and prefill passes by tokens.

    Args:
        runner: Runner to measure, with all slots free.
        threads: Number of its CPU threads.
        seconds: Time after which no round beyond the second begins.
        progress: Called with the share that is done, 0 to 1.
    """
    runner.warm_up()  # on a GPU: steps as they are served, captured
    lengths, slots = doubling(_SHORTEST, runner.max_length), doubling(1, runner.slots)
    chunks = tuple(chunk for chunk in _CHUNKS if chunk < runner.max_length)
    calls: dict[_Cell, Call] = {
        ("decode", length, n): partial(_decode, runner, length, n) for length in lengths for n in slots
    }
    calls |= {("prefill", chunk, 1): partial(_prefill, runner, chunk) for chunk in chunks}
    timings = measure(calls, rounds=_ROUNDS, budget_s=seconds, progress=progress)
    decode = _table([[timings["decode", length, n] for n in slots] for length in lengths], lengths, slots, threads)
    prefill = _table([[timings["prefill", chunk, 1]] for chunk in chunks], chunks, (1,), threads)
    return FloverProfile(step=decode, prefill=prefill)


def _decode(runner: FloverRunner, length: int, n: int, _worker: int) -> None:
    _wait(runner.decode(0, n, np.zeros(n, np.int64), np.full(n, length - 1, np.int64)))


def _prefill(runner: FloverRunner, chunk: int, _worker: int) -> None:
    _wait(runner.prefill(0, np.zeros(chunk, np.int64), 0))


def _wait(logits: torch.Tensor | None) -> None:
    """Wait for a GPU as serving does, which samples there and copies token ids."""
    if logits is not None and logits.device.type != "cpu":
        logits.argmax(-1).cpu()


def _table(
    rows: Sequence[Sequence[Timing]], lengths: tuple[int, ...], batches: tuple[int, ...], threads: int
) -> LatencyProfile:
    return LatencyProfile(
        lengths=lengths,
        batches=batches,
        median_ms=tuple(tuple(timing.median_ms for timing in row) for row in rows),
        p95_ms=tuple(tuple(timing.p95_ms for timing in row) for row in rows),
        threads=threads,
    )
