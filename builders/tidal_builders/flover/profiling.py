"""Measures decode steps and prefill passes on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from tidal.flover.manifest import FloverProfile
from tidal.flover.runner import FloverRunner
from tidal.profiles import LatencyProfile
from tidal_builders.timing import Call, Progress, Timing, measure

_SHORTEST = 64
_CHUNKS = (1, 16, 64, 256)
# First number of tokens before a chunk, beyond none.
_FIRST_CONTEXT = 256
_ROUNDS = 4

# "decode", attended tokens and slots; or "chunk", tokens before it and its own.
_Cell = tuple[str, int, int]


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Return `first`, its doubles below `last`, and `last`."""
    values = []
    while first < last:
        values.append(first)
        first *= 2
    return (*values, last)


def measure_profile(runner: FloverRunner, *, threads: int, seconds: float, progress: Progress) -> FloverProfile:
    """Measure decode steps by attended tokens and slots, and chunks of prompts by tokens before them and their own.

    Steps whose keys and values exceed the runner's budget, which are never served, get the duration of the largest one
    that fits, times the ratio of the slots.

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
    contexts = chunk_contexts(runner.max_length, chunks)
    calls |= {
        ("chunk", context, chunk): partial(_prefill, runner, context, chunk)
        for context, measured in contexts.items()
        for chunk in measured
    }
    timings: dict[_Cell, Timing] = {}
    groups = _groups(runner, lengths, slots, [cell for cell in calls if cell[0] == "chunk"])
    for number, (written, cells) in enumerate(groups):
        runner.release(dict.fromkeys(range(runner.slots), 0))
        runner.commit(written)
        timings |= measure(
            {cell: calls[cell] for cell in cells}, rounds=_ROUNDS, budget_s=seconds / len(groups),
            progress=partial(_share, progress, number, len(groups)),
        )  # fmt: skip
    runner.release(dict.fromkeys(range(runner.slots), 0))
    for length in lengths:
        for below, n in itertools.pairwise(slots):
            timings.setdefault(("decode", length, n), _scaled(timings["decode", length, below], n / below))
    decode = _table([[timings["decode", length, n] for n in slots] for length in lengths], lengths, slots, threads)
    rows = [[timings["chunk", context, chunk] for chunk in measured] for context, measured in contexts.items()]
    return FloverProfile(step=decode, chunk=_table(rows, tuple(context + 1 for context in contexts), chunks, threads))


def _groups(
    runner: FloverRunner, lengths: Sequence[int], slots: Sequence[int], chunks: Sequence[_Cell]
) -> list[tuple[dict[int, int], list[_Cell]]]:
    """Tokens to write to each slot, and the passes to measure then: one group if full slots fit into the budget.

    Otherwise each length has its own group, with the numbers of slots that fit: others are never served.
    """
    full = runner.max_length

    def fitting(length: int) -> list[_Cell]:
        most = runner.budget // runner.pages.bytes(length)
        return [("decode", length, n) for n in slots if n <= most]

    if len(fitting(full)) == len(slots):
        cells = [*chunks, *(cell for length in lengths for cell in fitting(length))]
        return [(dict.fromkeys(range(runner.slots), full), cells)]
    groups = [(dict.fromkeys(range(fitting(length)[-1][2]), length), fitting(length)) for length in lengths]
    return [({0: full}, list(chunks)), *groups]


def _share(progress: Progress, number: int, count: int, share: float) -> None:
    progress((number + share) / count)


def _scaled(timing: Timing, factor: float) -> Timing:
    return Timing(timing.median_ms * factor, timing.p95_ms * factor, timing.calls)


def chunk_contexts(max_length: int, chunks: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the chunks to measure by number of tokens before them: those that still fit into a slot.

    Args:
        max_length: Number of tokens of a slot.
        chunks: Numbers of tokens of chunks, ascending.
    """
    contexts = {0, max_length - chunks[-1]}
    context = _FIRST_CONTEXT
    while context < max_length:
        contexts.add(context)
        context *= 2
    return {each: tuple(chunk for chunk in chunks if each + chunk <= max_length) for each in sorted(contexts)}


def _decode(runner: FloverRunner, length: int, n: int, _worker: int) -> None:
    _wait(runner.decode(0, n, _token_ids(runner, n), np.full(n, length - 1, np.int64)))


def _prefill(runner: FloverRunner, context: int, chunk: int, _worker: int) -> None:
    _wait(runner.prefill(0, _token_ids(runner, chunk), context))


def _token_ids(runner: FloverRunner, count: int) -> npt.NDArray[np.int64]:
    """Different tokens, as equal ones would choose the same experts."""
    return np.random.default_rng(0).integers(0, runner.form.vocabulary, count)


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
