"""Latency by length and batch, of the ways in which the engines may share the machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from pydantic import BaseModel

from tidal.profiles import LatencyProfile
from tidal_builders.arlo.opened import Opened
from tidal_builders.arlo.reference import Facts
from tidal_builders.arlo.workers import Workers
from tidal_builders.samples import synthetic
from tidal_builders.timing import Call, Progress, Timing, measure

# Short queries that a dynamic runtime is profiled at, beside its runtimes' lengths.
_SHORT = (8, 16, 32, 64)
# Tokens of the largest batch that is measured, and so served. Sharing a pass saves little once a single query keeps
# the processor busy, and makes others wait; measuring such batches would take most of the build.
_MOST_TOKENS = 1024
# A second set of engines costs memory: it must answer a crowd faster by this share, on the mean over lengths.
_WORTH = 0.03
_TOKEN = 1

# Which set of engines, padded length, batch size.
_Cell = tuple[int, int, int]


class Profiles(BaseModel):
    """The profile of the engines as the spec asks, and of one engine a thread where that is worth having."""

    profile: LatencyProfile
    parallel: LatencyProfile | None


def measure_profiles(
    sets: Sequence[tuple[Opened, Workers]], facts: Facts, max_batch: int, progress: Progress
) -> Profiles:
    """Measure one or two sets of engines in the same rounds, each set with all its engines running at once.

    A dynamic form runs queries at their own length, so shorter ones than its first runtime's are measured too.
    """
    first = sets[0][0]
    lengths = sorted({*first.lengths, *(n for n in _SHORT if first.dynamic and n < first.lengths[0])})
    batches = sorted({max_batch, *(2**k for k in range(max_batch.bit_length()) if 2**k <= max_batch)})
    cells = [(n, size) for n in lengths for size in batches if size == 1 or n * size <= _MOST_TOKENS]
    calls: dict[_Cell, Call] = {}
    contexts: dict[_Cell, int] = {}
    for index, (opened, workers) in enumerate(sets):
        for length, size in cells:
            batch = synthetic(facts.input_names, size, length, _TOKEN)
            calls[index, length, size] = partial(opened.run, batch)
            contexts[index, length, size] = workers.contexts
    timings = measure(calls, contexts=contexts, budget_s=60, progress=progress)
    made = [_profile(timings, index, cells, workers) for index, (_, workers) in enumerate(sets)]
    parallel = made[1] if len(made) > 1 and _answers_crowds_faster(made[1], made[0]) else None
    return Profiles(profile=made[0], parallel=parallel)


def _profile(
    timings: dict[_Cell, Timing], index: int, cells: Sequence[tuple[int, int]], workers: Workers
) -> LatencyProfile:
    lengths = sorted({n for n, _ in cells})
    rows = [[timings[index, n, size] for other, size in cells if other == n] for n in lengths]
    return LatencyProfile(
        lengths=tuple(lengths),
        batches=tuple(sorted({size for _, size in cells})),
        median_ms=tuple(tuple(timing.median_ms for timing in row) for row in rows),
        p95_ms=tuple(tuple(timing.p95_ms for timing in row) for row in rows),
        threads=workers.threads,
        concurrency=workers.contexts,
    )


def _answers_crowds_faster(parallel: LatencyProfile, profile: LatencyProfile) -> bool:
    """Whether single queries, one on each engine, leave the machine faster than one after the other."""

    def per_query(of: LatencyProfile) -> list[float]:
        return [row[0] / of.concurrency for row in of.median_ms]

    ratios = np.divide(per_query(parallel), per_query(profile))
    return float(ratios.mean()) <= 1 - _WORTH
