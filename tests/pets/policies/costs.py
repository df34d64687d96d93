"""Profiles with given costs, and Equations 2 to 5 of the PetS paper written out without optimisation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from tidal.pets.policies import Pool
from tidal.pets.profile import Grid, PetsProfile, Tables
from tidal.profiles import LatencyProfile
from tidal.serving.lanes import LanePolicy

# Arguments: length, number of queries.
Cost = Callable[[int, int], float]
INFINITE = float("inf")


def make_profile(
    shared: Cost,
    terms: Mapping[str, Cost],
    *,
    longest: int = 16,
    most: int = 16,
    memory: Cost = lambda length, queries: length * queries,
    packed: bool = False,
) -> PetsProfile:
    """A profile with costs in milliseconds and bytes at every length and number of queries."""
    lengths, batches = tuple(range(1, longest + 1)), tuple(range(1, most + 1))

    def rows(cost: Cost) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(cost(length, n) for n in batches) for length in lengths)

    alpha = rows(shared)
    return PetsProfile(
        shared=LatencyProfile(lengths=lengths, batches=batches, median_ms=alpha, p95_ms=alpha, threads=1),
        terms_ms={kind: Grid(lengths=lengths, batches=batches, values=rows(cost)) for kind, cost in terms.items()},
        memory_bytes=Grid(lengths=lengths, batches=batches, values=rows(memory)),
        packed=packed,
    )


def looked_up(tables: Tables, lengths: Sequence[int]) -> int:
    """Length at which a batch of these queries is looked up."""
    return math.ceil(Fraction(sum(lengths), len(lengths))) if tables.packed else max(lengths)


def alpha(tables: Tables, lengths: Sequence[int]) -> float:
    """α of a batch of these queries; infinite if the batch is not allowed."""
    if len(lengths) > tables.max_batch:
        return INFINITE
    return float(tables.shared[looked_up(tables, lengths), len(lengths)])


def beta(tables: Tables, kind: int, lengths: Sequence[int], *, alone: bool = True) -> float:
    """β of a mini-batch; infinite if it would run alone and is not allowed as a batch."""
    if alone and alpha(tables, lengths) == INFINITE:
        return INFINITE
    return float(tables.terms[kind, looked_up(tables, lengths), len(lengths)])


def batch_latency(tables: Tables, pool: Pool, batch: Sequence[int]) -> float:
    """Equation 2."""
    total = alpha(tables, [int(pool.lengths[place]) for place in batch])
    for task in {int(pool.tasks[place]) for place in batch}:
        own = [place for place in batch if pool.tasks[place] == task]
        lengths = [int(pool.lengths[place]) for place in own]
        total += beta(tables, int(pool.kinds[own[0]]), lengths, alone=False) if total < INFINITE else 0.0
    return total


def splits(items: int) -> Iterator[list[range]]:
    """Every way to cut a sequence into consecutive groups."""
    for cuts in itertools.product((False, True), repeat=max(0, items - 1)):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), items]
        yield [range(a, b) for a, b in itertools.pairwise(edges)]


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to put items into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in partitions(rest):
        yield [[first], *partition]
        for place, group in enumerate(partition):
            yield [*partition[:place], [first, *group], *partition[place + 1 :]]


# As `tidal build` measured it: all-MiniLM-L6-v2, OpenVINO, two cores.
TABLES = PetsProfile.model_validate_json((Path(__file__).parent / "minilm_profile.json").read_text()).tables()


def measure_wide(lanes: LanePolicy, pace: float) -> None:
    """Let a policy have measured a pace of its wide mode, for lone queries and under load."""
    for measured in (lanes.wide.lone, lanes.wide.loaded):
        measured.pace, measured.runs = pace, 1
