"""Batching functions on mixed lengths and kinds, executed on the real engine (PetS §6.4, Figure 12)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.pets.batching import ways
from benchmarks.report import progress
from tidal.pets.engine.contract import LoadedTask
from tidal.pets.openvino_engine.engine import OpenVinoPetsEngine
from tidal.pets.policies import Batching, BatchPlan, BySpread, Fixed, Pool, batch_seconds
from tidal.pets.policies.spread import draw_pool
from tidal.pets.profile import Tables
from tidal.pets.terms import BaseLayers, TaskTerms
from tidal_builders.pets.typical import typical_task

# The second has padding, as in the paper, and the others the tokens of all rows one after another.
FIXED, PADDED, TUNED = "fixed", "fixed, padded", "tuned fixed"
# The server's batching function, and Algorithm 1 as printed.
SERVED, PRINTED = "joint", "coordinated"
FIXED_SIZE = 32
_SIZES = (8, 16, 32, 48, 64)
_MEAN_TOKENS = 32
_TUNING_SEED, _SEED = 500, 900
# Number of distinct tasks per kind; further tasks have copies of their values.
_VARIANTS = 4
_VOCABULARY = range(1000, 29000)


@dataclass(frozen=True, slots=True)
class StrategySize:
    """Extent of the comparison.

    Attributes:
        queries: Number of queries of a pool.
        spreads: Standard deviations of the lengths in tokens.
        tasks: Numbers of tasks.
        rounds: Number of rounds.
    """

    queries: int
    spreads: tuple[float, ...]
    tasks: tuple[int, ...]
    rounds: int


FULL = StrategySize(1024, (1, 2, 4, 8), (32, 64, 128), 3)
QUICK = StrategySize(256, (1, 8), (32,), 1)


@dataclass(frozen=True, slots=True)
class Executed:
    """One batching function on one pool in one round.

    Attributes:
        batching: Name of the batching function.
        tasks: Number of tasks.
        spread: Standard deviation of the lengths in tokens.
        seconds: Measured seconds of all batches.
        predicted: Predicted seconds of all batches.
        planning: Seconds of the batching function itself.
        batches: Number of batches.
    """

    batching: str
    tasks: int
    spread: float
    seconds: float
    predicted: float
    planning: float
    batches: int


class EngineTasks:
    """Random tasks of every kind in an engine, created on demand."""

    def __init__(self, engine: OpenVinoPetsEngine, base: BaseLayers) -> None:
        self._engine = engine
        self._base = base
        self._terms: dict[tuple[str, int], TaskTerms] = {}
        self._loaded: dict[tuple[str, int], LoadedTask] = {}

    def get(self, kind: str, number: int) -> LoadedTask:
        """Return the task of a kind with a number."""
        key = kind, number % _VARIANTS
        if key not in self._terms:
            self._terms[key] = typical_task(kind, self._base, seed=key[1])
        if (kind, number) not in self._loaded:
            self._loaded[kind, number] = self._engine.add(self._terms[key])
        return self._loaded[kind, number]


def execute(
    engine: OpenVinoPetsEngine,
    tasks: EngineTasks,
    pool: Pool,
    plan: BatchPlan,
    kinds: Sequence[str],
    seed: int,
    *,
    padded: bool = False,
) -> float:
    """Run the batches of a plan one after another; return the seconds.

    Args:
        engine: Engine of the base.
        tasks: Its tasks.
        pool: The queries.
        plan: Batches of the pool.
        kinds: Names of the kinds.
        seed: Seed of the token ids.
        padded: Whether products are computed for padding too: it is then in rows of their own, without a task, so that
            no other token attends to it.
    """
    draw = np.random.default_rng(seed)
    batches = []
    for places in plan:
        lengths = pool.lengths[places].astype(np.int32)
        longest = int(lengths.max())
        ids = draw.integers(_VOCABULARY.start, _VOCABULARY.stop, (len(places), longest), np.int32)
        of_rows: list[LoadedTask | None] = [
            tasks.get(kinds[pool.kinds[place]], int(pool.tasks[place])) for place in places
        ]
        if padded:
            fill = longest - lengths[lengths < longest]
            ids = np.concatenate([ids, np.zeros((len(fill), longest), np.int32)])
            of_rows, lengths = of_rows + [None] * len(fill), np.concatenate([lengths, fill])
        batches.append((of_rows, ids, lengths))
    begin = time.perf_counter()
    for rows, ids, lengths in batches:
        for task, vector in zip(rows, engine.pooled(rows, ids, lengths), strict=True):
            if task is not None:
                task.head.weight @ vector + task.head.bias
    return time.perf_counter() - begin


def tuned_size(engine: OpenVinoPetsEngine, tasks: EngineTasks, tables: Tables, size: StrategySize) -> int:
    """Return the fastest fixed size, on other queries than those measured later."""
    took = {}
    for candidate in (each for each in _SIZES if each <= tables.max_batch):
        took[candidate] = 0.0
        for spread in size.spreads:
            pool = _draw(tables, size.queries // 2, size.tasks[0], spread, _TUNING_SEED)
            took[candidate] += execute(engine, tasks, pool, Fixed(candidate)(pool, tables), tables.kinds, _TUNING_SEED)
    return min(took, key=took.__getitem__)


def compare(
    engine: OpenVinoPetsEngine, base: BaseLayers, tables: Tables, spread_tokens: float | None, size: StrategySize
) -> tuple[list[Executed], int]:
    """Run all batching functions on all pools, alternately.

    Args:
        engine: Engine of the base.
        base: Layers of the base.
        tables: Tables of the profile.
        spread_tokens: Threshold of the rule of §6.4; None if the profile has none.
        size: Extent of the comparison.

    Returns:
        Executions, and the tuned fixed size.
    """
    tasks = EngineTasks(engine, base)
    progress("batching: tuning the fixed size on other queries")
    tuned = tuned_size(engine, tasks, tables, size)
    batchings: dict[str, Batching] = {**ways(FIXED_SIZE), PADDED: Fixed(FIXED_SIZE), TUNED: Fixed(tuned)}
    if spread_tokens is not None:
        batchings["by_spread"] = BySpread(spread_tokens)
    found = []
    for count in size.tasks:
        for spread in size.spreads:
            progress(f"batching: {size.queries} queries of {count} tasks, lengths with a deviation of {spread:g}")
            for turn in range(size.rounds):
                pool = _draw(tables, size.queries, count, spread, _SEED + turn)
                found += _round(engine, tasks, tables, batchings, pool, (count, spread, turn))
    return found, tuned


def _round(
    engine: OpenVinoPetsEngine,
    tasks: EngineTasks,
    tables: Tables,
    batchings: Mapping[str, Batching],
    pool: Pool,
    case: tuple[int, float, int],
) -> list[Executed]:
    count, spread, turn = case
    order = list(batchings)
    found = []
    for name in order[turn % len(order) :] + order[: turn % len(order)]:
        begin = time.perf_counter()
        plan = batchings[name](pool, tables)
        planning = time.perf_counter() - begin
        predicted = float(batch_seconds(pool, plan, tables).sum())
        seconds = execute(engine, tasks, pool, plan, tables.kinds, _SEED + turn, padded=name == PADDED)
        found.append(Executed(name, count, spread, seconds, predicted, planning, len(plan)))
    return found


def speedup(
    found: Sequence[Executed], batching: str, over: str, tasks: int | None = None, spread: float | None = None
) -> float:
    """Return the speed-up of a batching function over another: mean over pools of the ratio of total seconds.

    Args:
        found: Executions.
        batching: Name of the function.
        over: Name of the other one.
        tasks: Number of tasks of the pools; None for all.
        spread: Deviation of their lengths in tokens; None for all.
    """
    sums: dict[tuple[str, int, float], float] = {}
    for each in found:
        key = each.batching, each.tasks, each.spread
        sums[key] = sums.get(key, 0.0) + each.seconds
    ratios = [
        sums[over, count, deviation] / seconds
        for (name, count, deviation), seconds in sums.items()
        if name == batching and tasks in (None, count) and spread in (None, deviation)
    ]
    return float(np.mean(ratios))


def _draw(tables: Tables, queries: int, tasks: int, spread: float, seed: int) -> Pool:
    return draw_pool(tables, queries=queries, tasks=tasks, spread=spread, mean=_MEAN_TOKENS, seed=seed)
