"""OTAS's batching by deadline and utility over text tasks on one shared encoder, in simulated time.

The policies are the ones that serve; the latency of a batch is from the encoder's measured profile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tidal.otas.policies import ParetoPolicy
from tidal.pets.policies import PetsBatch, PetsQuery, PetsScheduler, Pool, batch_seconds, joint, total_seconds
from tidal.pets.policies.order import deadline_of
from tidal.pets.profile import Tables

# Latencies in seconds and utilities of OTAS's Table II, with a quarter of its latencies: a pass over a batch of texts
# takes about a quarter of one over images.
QUERY_TYPES = ((0.15, 0.3), (0.25, 0.01), (0.15, 1.0), (0.25, 0.2), (0.15, 0.3), (0.25, 0.01))
LEAST_TIME, BY_UTILITY = "PetS", "PetS, by utility"
OTAS, HIGHEST_UTILITY = "OTAS's plan", "highest utility first"
_TASKS, _MEAN_TOKENS, _SPREAD, _SHORTEST = 32, 24, 12, 4
# Range of the rate in each second, as shares of its mean.
_RATES = (0.4, 1.6)
_SIZES = (8, 16, 32, 64)


class BatchScheduler(Protocol):
    """Decides which waiting queries run next on one engine."""

    def add(self, query: PetsQuery, now: float) -> None:
        """Add a query that has arrived."""

    def start(self, now: float) -> Sequence[PetsQuery]:
        """Return the next batch; empty if no waiting query can be in time."""

    def ended(self, seconds: float) -> None:
        """Record that the batch has run, and the seconds that it took."""


class PetsOrder:
    """The scheduler of the `pets` backend, with or without utilities."""

    def __init__(self, tables: Tables, *, by_utility: bool) -> None:
        self._scheduler = PetsScheduler(tables, joint, by_utility=by_utility)
        self._batch: PetsBatch | None = None

    def add(self, query: PetsQuery, now: float) -> None:
        """See `BatchScheduler`."""
        self._scheduler.submit(query)

    def start(self, now: float) -> Sequence[PetsQuery]:
        """See `BatchScheduler`."""
        self._batch = self._scheduler.next_batch(now)
        self._scheduler.expired(now)
        return [] if self._batch is None else self._batch.queries

    def ended(self, seconds: float) -> None:
        """See `BatchScheduler`."""
        assert self._batch is not None
        self._scheduler.finished(self._batch, seconds)


class HighestUtilityFirst:
    """A simple scheduler by utility: the queries with the highest utility that run together in time, up to a size."""

    def __init__(self, tables: Tables, size: int) -> None:
        self._tables, self._size = tables, size
        self._waiting: list[PetsQuery] = []

    def add(self, query: PetsQuery, now: float) -> None:
        """See `BatchScheduler`."""
        self._waiting.append(query)

    def start(self, now: float) -> Sequence[PetsQuery]:
        """See `BatchScheduler`."""
        alone = self._tables.alone_s
        hopeful = [q for q in self._waiting if deadline_of(q) >= now + alone(self._tables.kind(q.kind), q.length)]
        hopeful.sort(key=lambda query: (-query.utility, deadline_of(query)))
        size = min(self._size, len(hopeful))
        while size > 1 and min(map(deadline_of, hopeful[:size])) < now + true_seconds(self._tables, hopeful[:size]):
            size -= 1
        self._waiting = hopeful[size:]
        return hopeful[:size]

    def ended(self, seconds: float) -> None:
        """See `BatchScheduler`."""


class OtasOrder:
    """OTAS's plans without prompts or token merging; the latency of a batch depends on its number of queries only."""

    def __init__(self, costs: TextCosts) -> None:
        self._policy = ParetoPolicy(costs)
        self._batch: Any = None

    def add(self, query: PetsQuery, now: float) -> None:
        """See `BatchScheduler`."""
        self._policy.add(query, now)  # type: ignore[arg-type]  # has all fields of OTAS's query

    def start(self, now: float) -> Sequence[PetsQuery]:
        """See `BatchScheduler`."""
        self._batch = self._policy.next(now).batch
        return [] if self._batch is None else self._batch.queries

    def ended(self, seconds: float) -> None:
        """See `BatchScheduler`."""
        self._policy.finished(self._batch, seconds)


@dataclass(frozen=True, slots=True)
class TextCosts:
    """The profile that OTAS's policies use.

    Attributes:
        seconds: Latency of a batch by its number of queries, from 1, seconds.
        gammas: The only γ.
    """

    seconds: tuple[float, ...]
    gammas: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, tables: Tables, sample: Sequence[PetsQuery], draws: int = 40) -> TextCosts:
        """Return the mean latencies of random batches.

        Args:
            tables: Latency tables of the encoder.
            sample: Queries to draw batches from.
            draws: Number of batches per size.
        """
        rng = np.random.default_rng(0)
        means = []
        for size in range(1, tables.max_batch + 1):
            batches = [[sample[place] for place in rng.integers(len(sample), size=size)] for _ in range(draws)]
            means.append(float(np.mean([true_seconds(tables, batch) for batch in batches])))
        return cls(tuple(means))

    @property
    def max_batch(self) -> int:
        """Maximum number of queries of a batch."""
        return len(self.seconds)

    def latency_s(self, gamma: int, batch: int) -> float:
        """Return the latency of a batch, seconds."""
        return self.seconds[batch - 1]

    def memory_bytes(self, gamma: int, batch: int) -> int:
        """Return 0: memory is not limited."""
        return 0

    def accuracy(self, task: str, gamma: int) -> float:
        """Return 1: every answer in time earns its utility."""
        return 1.0

    def gamma_for_rate(self, rate: float) -> int:
        """Return the only γ."""
        return 0


@dataclass(frozen=True, slots=True)
class UtilityResult:
    """The result of a simulation: utility earned and offered, queries by outcome, mean time of a decision."""

    utility: float
    offered: float
    in_time: int
    late: int
    queries: int
    decision_ms: float

    @property
    def share(self) -> float:
        """Share of the offered utility."""
        return self.utility / self.offered


def compare(
    tables: Tables, loads: Sequence[float], *, queries: int, rounds: int, report_progress: Callable[[str], None]
) -> dict[float, list[dict[str, UtilityResult]]]:
    """Simulate all schedulers on the same queries; return the results by load and round.

    The batch size of `HIGHEST_UTILITY` is, for each load, the one that earns most on a separate trace.

    Args:
        tables: Latency tables of the encoder.
        loads: Loads as shares of the encoder's capacity without deadlines.
        queries: Number of queries of a trace.
        rounds: Number of traces per load.
        report_progress: Receives the current step.
    """
    rate = capacity(tables)
    costs = TextCosts.of(tables, draw_queries(tables, rate, 2.0, seed=99)[:400])
    found: dict[float, list[dict[str, UtilityResult]]] = {}
    for load in loads:
        report_progress(f"simulating {load:.0%} of {rate:.0f} queries per second")
        seconds = queries / (load * rate)
        trial = draw_queries(tables, load * rate, seconds, seed=98)
        size = max(_SIZES, key=lambda size: simulate(HighestUtilityFirst(tables, size), trial, tables).utility)
        found[load] = []
        for seed in range(rounds):
            trace = draw_queries(tables, load * rate, seconds, seed)
            systems: dict[str, BatchScheduler] = {
                LEAST_TIME: PetsOrder(tables, by_utility=False),
                HIGHEST_UTILITY: HighestUtilityFirst(tables, size),
                OTAS: OtasOrder(costs),
                BY_UTILITY: PetsOrder(tables, by_utility=True),
            }
            found[load].append({name: simulate(system, trace, tables) for name, system in systems.items()})
    return found


def true_seconds(tables: Tables, queries: Sequence[PetsQuery]) -> float:
    """Return the latency of one batch, seconds (PetS Eq. 2).

    Args:
        tables: Latency tables of the encoder.
        queries: Queries of the batch.
    """
    pool = Pool.of(tables, ((query.task, query.kind, query.length) for query in queries))
    return float(batch_seconds(pool, [np.arange(len(pool))], tables)[0])


def capacity(tables: Tables) -> float:
    """Return the queries per second without deadlines.

    Args:
        tables: Latency tables of the encoder.
    """
    queries = draw_queries(tables, 512.0, 4.0, seed=97)[:512]
    pool = Pool.of(tables, ((query.task, query.kind, query.length) for query in queries))
    return len(queries) / total_seconds(pool, joint(pool, tables), tables)


def draw_queries(tables: Tables, rate: float, seconds: float, seed: int) -> list[PetsQuery]:
    """Draw Poisson arrivals of tasks of all measured kinds; the rate changes every second.

    Args:
        tables: Latency tables of the encoder.
        rate: Mean rate, queries per second.
        seconds: Duration of the trace.
        seed: Seed; equal seeds give equal queries.
    """
    rng = np.random.default_rng(seed)
    levels = rng.uniform(*_RATES, size=int(seconds) + 1)
    found = []
    now = 0.0
    while now < seconds:
        now += rng.exponential(1 / (rate * levels[min(int(now), len(levels) - 1)]))
        task = int(rng.integers(_TASKS))
        length = int(np.clip(round(rng.normal(_MEAN_TOKENS, _SPREAD)), _SHORTEST, tables.max_length))
        latency, utility = QUERY_TYPES[int(rng.integers(len(QUERY_TYPES)))]
        found.append(
            PetsQuery(f"task {task}", tables.kinds[task % len(tables.kinds)], length, now, now + latency, utility)
        )
    return found


def simulate(system: BatchScheduler, queries: Sequence[PetsQuery], tables: Tables) -> UtilityResult:
    """Run a scheduler over queries; an answer after its deadline earns nothing.

    Args:
        system: Scheduler.
        queries: Queries in the order of their arrival.
        tables: Latency tables of the encoder.
    """
    now, place, earned, in_time, ran = 0.0, 0, 0.0, 0, 0
    deciding_s, decisions = 0.0, 0
    while True:
        while place < len(queries) and queries[place].arrival <= now:
            system.add(queries[place], queries[place].arrival)
            place += 1
        began = time.process_time()
        batch = system.start(now)
        deciding_s += time.process_time() - began
        decisions += 1
        if batch:
            seconds = true_seconds(tables, batch)
            now += seconds
            while place < len(queries) and queries[place].arrival <= now:
                system.add(queries[place], queries[place].arrival)
                place += 1
            system.ended(seconds)
            kept = [query for query in batch if deadline_of(query) >= now]
            earned += sum(query.utility for query in kept)
            in_time += len(kept)
            ran += len(batch)
        elif place < len(queries):
            now = queries[place].arrival
        else:
            offered = sum(query.utility for query in queries)
            return UtilityResult(earned, offered, in_time, ran - in_time, len(queries), 1e3 * deciding_s / decisions)
