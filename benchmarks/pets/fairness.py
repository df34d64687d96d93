"""Fairness between short and long queries: the served scheduler, simulated with a virtual clock and a measured profile.

A batch takes the time of the profile, decisions take no time, and equal seeds give equal results.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.report import Report
from tidal.pets.manifest import PetsManifest
from tidal.pets.policies import PetsBatch, PetsQuery, PetsScheduler
from tidal.pets.profile import Tables

# Draws the number of tokens of one query.
Lengths = Callable[[np.random.Generator], int]

_TASKS = 16
# Number of the first queries that are not counted: the queue is still growing.
_WARM_UP = 100
# Number of queries in flight when the capacity of a mixture is measured.
_CROWD = 256


def uniform(shortest: int, longest: int) -> Lengths:
    """Lengths distributed uniformly between two bounds."""
    return lambda draw: int(draw.integers(shortest, longest + 1))


def mixed(often: Lengths, seldom: Lengths, share: float) -> Lengths:
    """A mixture of two distributions of lengths, with a share of `seldom`."""
    return lambda draw: seldom(draw) if draw.random() < share else often(draw)


MIXTURES: Mapping[str, Lengths] = {
    "uniform": uniform(4, 64),
    "mostly short": mixed(uniform(4, 16), uniform(48, 64), 0.05),
    "mostly long": mixed(uniform(48, 64), uniform(4, 16), 0.05),
}


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop with a fixed number of queries in flight."""

    in_flight: int

    def __str__(self) -> str:
        """For tables."""
        return f"{self.in_flight} in flight"


@dataclass(frozen=True, slots=True)
class Open:
    """An open loop of Poisson arrivals at a share of the mixture's capacity."""

    load: float

    def __str__(self) -> str:
        """For tables."""
        return f"{self.load:.0%} load"


LOADS: tuple[Closed | Open, ...] = (Closed(8), Closed(32), Closed(64), Open(0.7), Open(0.95))


@dataclass(frozen=True, slots=True)
class Answered:
    """An answered query: tokens, latency in seconds, and the number of batches of later queries that overtook it."""

    length: int
    latency_s: float
    overtaken: int


@dataclass(frozen=True, slots=True)
class Fairness:
    """Latencies of the shortest and the longest tenth of the queries, in ms.

    Attributes:
        per_second: Answers per second.
        mean: Mean latency of all queries.
        short: Median and 99th percentile of the shortest tenth.
        long: Median and 99th percentile of the longest tenth.
        own: Service time of the longest query alone.
        overtaken: Largest number of batches of later queries that ran before a query.
    """

    per_second: float
    mean: float
    short: tuple[float, float]
    long: tuple[float, float]
    own: float
    overtaken: int

    @property
    def holds(self) -> bool:
        """Whether the longest tenth's p99 is at most twice that of the shortest and its own service time."""
        return self.long[1] <= 2 * self.short[1] + self.own


def simulate(
    scheduler: PetsScheduler, tables: Tables, lengths: Lengths, load: Closed | Open, queries: int, seed: int = 0
) -> Fairness:
    """Simulate a scheduler until a number of queries is answered.

    Args:
        scheduler: Scheduler without waiting queries.
        tables: Tables of its profile.
        lengths: Distribution of the lengths.
        load: Arrivals of the queries.
        queries: Number of queries.
        seed: Seed of lengths, tasks and arrivals.
    """
    draw = np.random.default_rng(seed)
    if isinstance(load, Open):
        arrivals = np.cumsum(draw.exponential(1 / (load.load * capacity(tables, lengths)), queries))
    else:
        arrivals = np.zeros(load.in_flight)
    coming = [_query(draw, tables, lengths, float(at)) for at in arrivals][::-1]
    waiting: dict[PetsQuery, int] = {}  # with the batches of later queries that ran before it
    running: list[tuple[float, int, PetsBatch]] = []
    answered: list[Answered] = []
    started = 0
    now = 0.0
    while len(answered) < queries:
        while coming and coming[-1].arrival <= now:
            scheduler.submit(query := coming.pop())
            waiting[query] = 0
        while (batch := scheduler.next_batch(now)) is not None:
            heapq.heappush(running, (now + batch.seconds, started, batch))
            started += 1
        if not running or (coming and coming[-1].arrival < running[0][0]):
            now = coming[-1].arrival
            continue
        now, _, batch = heapq.heappop(running)
        scheduler.finished(batch, batch.seconds)
        answered += _run(batch, waiting, now)
        if isinstance(load, Closed):
            coming = [*(_query(draw, tables, lengths, now) for _ in batch.queries), *coming]
    return _fairness(answered[_WARM_UP:], now * (1 - _WARM_UP / len(answered)), tables)


@cache
def capacity(tables: Tables, lengths: Lengths) -> float:
    """Return the answers per second of a saturated scheduler."""
    return simulate(PetsScheduler(tables), tables, lengths, Closed(_CROWD), 6 * _CROWD).per_second


def _query(draw: np.random.Generator, tables: Tables, lengths: Lengths, arrival: float) -> PetsQuery:
    task = int(draw.integers(_TASKS))
    return PetsQuery(str(task), tables.kinds[task % len(tables.kinds)], lengths(draw), arrival)


def _run(batch: PetsBatch, waiting: dict[PetsQuery, int], now: float) -> list[Answered]:
    found = [Answered(query.length, now - query.arrival, waiting.pop(query)) for query in batch.queries]
    oldest = min(query.arrival for query in batch.queries)
    for query in waiting:
        if query.arrival < oldest:
            waiting[query] += 1
    return found


def _fairness(answered: list[Answered], seconds: float, tables: Tables) -> Fairness:
    answered = sorted(answered, key=lambda each: each.length)
    tenth = len(answered) // 10

    def percentiles(some: list[Answered]) -> tuple[float, float]:
        median, high = np.percentile([each.latency_s * 1e3 for each in some], (50, 99))
        return float(median), float(high)

    longest = answered[-1].length
    return Fairness(
        per_second=len(answered) / seconds,
        mean=float(np.mean([each.latency_s for each in answered])) * 1e3,
        short=percentiles(answered[:tenth]),
        long=percentiles(answered[-tenth:]),
        own=min(tables.alone_s(kind, longest) for kind in range(len(tables.kinds))) * 1e3,
        overtaken=max(each.overtaken for each in answered),
    )


def main(
    manifest: Annotated[Path, typer.Argument(help="manifest.json of a base, for its profile.")],
    queries: Annotated[int, typer.Option(help="Queries in each simulation.")] = 4000,
) -> None:
    """Print latencies of the shortest and the longest tenth of the queries, for each mixture of lengths and load."""
    tables = PetsManifest.model_validate_json(manifest.read_text()).profile.tables()
    columns = ["lengths, load", "answers/s", "shortest p50", "p99", "longest p50", "p99", "p99 at most", "overtaken by"]
    rows = []
    for name, lengths in MIXTURES.items():
        for load in LOADS:
            found = simulate(PetsScheduler(tables), tables, lengths, load, queries)
            times = (*found.short, *found.long, 2 * found.short[1] + found.own)
            rows.append(
                [f"{name}, {load}", *(f"{each:.0f}" for each in (found.per_second, *times)), str(found.overtaken)]
            )
    Report("fairness", quick=False).add_table("milliseconds by length and load (virtual clock)", columns, rows)


if __name__ == "__main__":
    typer.run(main)
