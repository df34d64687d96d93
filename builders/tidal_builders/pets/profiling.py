"""Measures the costs of the base and of its tasks' terms here: α and β of PetS §4.1, by length and queries."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tidal.pets.engine.contract import LoadedTask, PetsEngine
from tidal.pets.engine.description import Description
from tidal.pets.policies.spread import spread_threshold
from tidal.pets.profile import Grid, PetsProfile
from tidal.pets.terms import BaseLayers
from tidal.profiles import LatencyProfile
from tidal_builders.pets.streams import measure_memory, on_gpu, with_streams
from tidal_builders.pets.typical import typical_task
from tidal_builders.timing import Call, Progress, Timing, measure

# Padded lengths to measure, up to the base's longest, which is measured too.
_LENGTHS = (8, 16, 32, 64, 128, 256, 512)
_TOKEN = 1
_ROUNDS = 4
_BASE = "base"
# Bytes of a float32; ids, types and lengths are negligible.
_BYTES = 4

# Number of tasks of a kind that share a measured batch.
_TASKS = 8

# The base alone or a kind, padded length, number of queries per task.
_Cell = tuple[str, int, int]


def grid_of(max_length: int, max_batch: int, max_tokens: int) -> dict[int, tuple[int, ...]]:
    """The numbers of queries to measure for every padded length.

    They double from 1 to `max_batch`, as long as a batch has at most `max_tokens` tokens; 1 is always measured.

    Args:
        max_length: Longest input in tokens.
        max_batch: Largest number of queries per batch.
        max_tokens: Largest number of tokens per batch.
    """
    lengths = [*(length for length in _LENGTHS if length < max_length), max_length]
    batches = sorted({max_batch, *(2**k for k in range(max_batch.bit_length()) if 2**k <= max_batch)})
    return {length: tuple(n for n in batches if n == 1 or n * length <= max_tokens) for length in lengths}


def measure_profile(
    engine: PetsEngine,
    layers: BaseLayers,
    *,
    kinds: Sequence[str],
    max_length: int,
    max_batch: int,
    max_tokens: int,
    threads: int,
    seconds: float,
    progress: Progress,
) -> PetsProfile:
    """Measure α with the base alone, and β of every kind as the time that each of several typical tasks in a batch
    adds.

    Several tasks, because the terms of a single one seem to cost nothing: its numbers are still in the processor's
    caches from the batch before. Everything is measured in the same rounds, and smoothed, see `_monotone`: a plan would
    choose the cells that were lucky. On a GPU, the memory of batches and the best number of streams are measured too.

    Args:
        engine: Engine of the base.
        layers: Layers of the base.
        kinds: Kinds of task to measure.
        max_length: Longest input in tokens.
        max_batch: Largest number of queries per batch.
        max_tokens: Largest number of tokens per batch.
        threads: CPU threads of the engine.
        seconds: Time after which no further round begins, except the second.
        progress: Called with the share that is done.
    """
    grid = grid_of(max_length, max_batch, max_tokens)
    tasks: dict[str, list[LoadedTask | None]] = {_BASE: [None]}
    for kind in kinds:
        terms = typical_task(kind, layers)
        tasks[kind] = [engine.add(terms) for _ in range(min(_TASKS, max_batch))]
    if on_gpu(engine):
        memory = measure_memory(_calls(engine, {name: of_kind[:1] for name, of_kind in tasks.items()}, grid))
    else:
        memory = _computed_memory(grid, engine.description)
    calls = _calls(engine, tasks, grid)
    timings = measure(calls, rounds=_ROUNDS, budget_s=seconds, progress=progress)
    for task in itertools.chain(*tasks.values()):
        if task is not None:
            engine.remove(task)
    profile = _profile(timings, grid, kinds, memory, threads, packed=engine.description.packed)
    if on_gpu(engine):
        profile = with_streams(engine, layers, profile, seconds=seconds)
    return profile


def _calls(
    engine: PetsEngine, tasks: Mapping[str, Sequence[LoadedTask | None]], grid: Mapping[int, Sequence[int]]
) -> dict[_Cell, Call]:
    return {
        (name, length, n): partial(_run, engine, of_kind[: tasks_together(numbers, n)], length, n)
        for name, of_kind in tasks.items()
        for length, numbers in grid.items()
        for n in numbers
    }


def tasks_together(numbers: Sequence[int], n: int) -> int:
    """Number of tasks with `n` queries each that make a batch of one of the measured `numbers` of queries."""
    return max(tasks for tasks in range(1, _TASKS + 1) if tasks * n in numbers)


def _run(engine: PetsEngine, tasks: Sequence[LoadedTask | None], length: int, n: int, _worker: int) -> None:
    rows = [task for task in tasks for _ in range(n)]
    engine.pooled(rows, np.full((len(rows), length), _TOKEN, np.int32), np.full(len(rows), length, np.int32))


def _computed_memory(grid: Mapping[int, Sequence[int]], description: Description) -> dict[tuple[int, int], float]:
    token_bytes = activation_bytes(description)
    return {(length, n): token_bytes * length * n for length, numbers in grid.items() for n in numbers}


def _profile(
    timings: Mapping[_Cell, Timing],
    grid: Mapping[int, Sequence[int]],
    kinds: Sequence[str],
    memory_bytes: Mapping[tuple[int, int], float],
    threads: int,
    *,
    packed: bool,
) -> PetsProfile:
    lengths, batches = tuple(grid), tuple(grid[min(grid)])

    def rows(of: Mapping[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(of[length, n] for n in numbers) for length, numbers in grid.items())

    cells = [(length, n) for length, numbers in grid.items() for n in numbers]
    alpha = {(length, n): timings[_BASE, length, n] for length, n in cells}

    def beta(kind: str, length: int, n: int) -> float:
        tasks = tasks_together(grid[length], n)
        return (timings[kind, length, n].median_ms - alpha[length, tasks * n].median_ms) / tasks

    shared = LatencyProfile(
        lengths=lengths,
        batches=batches,
        median_ms=rows(_monotone({cell: timing.median_ms for cell, timing in alpha.items()})),
        p95_ms=rows(_monotone({cell: timing.p95_ms for cell, timing in alpha.items()})),
        threads=threads,
    )
    terms = {
        kind: Grid(
            lengths=lengths,
            batches=batches,
            values=rows(_monotone({cell: beta(kind, *cell) for cell in cells})),
        )
        for kind in kinds
    }
    memory = Grid(lengths=lengths, batches=batches, values=rows(memory_bytes))
    profile = PetsProfile(shared=shared, terms_ms=terms, memory_bytes=memory, packed=packed)
    return profile.model_copy(update={"spread_tokens": spread_threshold(profile.tables())})


def _monotone(values: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """The same values smoothed, so that they never fall with length or queries, and are at least 0.

    The mean of the least such values that are nowhere below, and of the largest that are nowhere above: one disturbed
    cell moves the others half as much.
    """
    rising = {}
    for length, n in values:
        upto = [value for (other, m), value in values.items() if other <= length and m <= n]
        beyond = [value for (other, m), value in values.items() if other >= length and m >= n]
        rising[length, n] = max(0.0, (max(upto) + min(beyond)) / 2)
    return rising


def activation_bytes(description: Description) -> float:
    """Memory of one token of a batch in bytes: the tensors of a layer that are in use at the same time.

    In attention these are the layer's input, queries, keys and values before and after the tasks' terms; in the
    feed-forward part its input, and the inner layer before and after.

    Args:
        description: Layers of the encoder.
    """
    inner = max(spec.outputs for spec in description.linear)
    return _BYTES * float(max(7 * description.width, description.width + 2 * inner))
