"""Measures latency by length and batch size, for the ways in which engines may share the machine."""

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

# Short lengths at which a dynamic runtime is profiled, in addition to its runtimes' lengths.
_SHORT = (8, 16, 32, 64)
# Tokens of the largest batch that is measured, and so served. Batching gains little when a single query saturates the
# processor, and delays other queries; measuring larger batches would take most of the build.
_MAX_TOKENS = 1024
# A second set of engines costs memory: its throughput must be higher by this share, on the mean over lengths.
_MIN_GAIN = 0.03
_TOKEN = 1

# Set of engines, padded length, batch size.
_Cell = tuple[int, int, int]


class Profiles(BaseModel):
    """Latency profiles of a text classifier.

    Attributes:
        profile: Profile of the default workers.
        parallel: Profile of one engine per thread, if its throughput is higher.
    """

    profile: LatencyProfile
    parallel: LatencyProfile | None


def measure_profiles(
    sets: Sequence[tuple[Opened, Workers]], facts: Facts, max_batch: int, progress: Progress
) -> Profiles:
    """Measure one or two sets of engines in the same rounds. All engines of a set run at the same time.

    A dynamic form runs queries at their own length, so lengths below its first runtime's are measured as well.

    Args:
        sets: Opened engines with their workers, the default first.
        facts: Properties of the source model.
        max_batch: Maximum batch size.
        progress: Called with the completed share, 0 to 1.
    """
    first = sets[0][0]
    ladder = first.ladder
    lengths = sorted({*ladder.lengths, *(n for n in _SHORT if ladder.static_upto == 0 and n < ladder.lengths[0])})
    batches = sorted({max_batch, *(2**k for k in range(max_batch.bit_length()) if 2**k <= max_batch)})
    cells = [(n, size) for n in lengths for size in batches if size == 1 or n * size <= _MAX_TOKENS]
    calls: dict[_Cell, Call] = {}
    contexts: dict[_Cell, int] = {}
    for index, (opened, workers) in enumerate(sets):
        for length, size in cells:
            batch = synthetic(facts.input_names, size, length, _TOKEN)
            calls[index, length, size] = partial(opened.run, batch)
            contexts[index, length, size] = workers.contexts
    timings = measure(calls, contexts=contexts, budget_s=60, progress=progress)
    made = [_profile(timings, index, cells, workers) for index, (_, workers) in enumerate(sets)]
    parallel = made[1] if len(made) > 1 and _has_more_throughput(made[1], made[0]) else None
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


def _has_more_throughput(parallel: LatencyProfile, profile: LatencyProfile) -> bool:
    """Whether single queries that run in parallel, one per engine, have more throughput."""

    def per_query(of: LatencyProfile) -> list[float]:
        return [row[0] / of.concurrency for row in of.median_ms]

    ratios = np.divide(per_query(parallel), per_query(profile))
    return float(ratios.mean()) <= 1 - _MIN_GAIN
