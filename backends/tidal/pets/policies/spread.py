"""The spread of lengths from which batching by the shared cost alone is better, found by simulation (PetS §6.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidal.pets.policies.batching import alpha_only, coordinated
from tidal.pets.policies.pool import Pool, total_seconds
from tidal.pets.policies.thresholds import ThresholdCase, best_threshold
from tidal.pets.profile import Tables

# The paper's protocol.
QUERIES = 1024
MEAN_TOKENS = 32
# [CLS], [SEP] and a word between them.
_SHORTEST = 3


def draw_pool(tables: Tables, *, queries: int, tasks: int, spread: float, mean: float, seed: int) -> Pool:
    """Draw queries of random tasks, each task of a random measured kind, with lengths of a Gaussian distribution.

    Lengths are rounded, at least those of one word, and at most the longest that may run.

    Args:
        tables: Costs of the base and of tasks' terms.
        queries: Number of queries.
        tasks: Number of tasks.
        spread: Standard deviation of the lengths in tokens.
        mean: Mean of the lengths in tokens.
        seed: Seed of the random generator.
    """
    random = np.random.default_rng(seed)
    kinds = random.integers(0, len(tables.kinds), tasks)
    of_task = random.integers(0, tasks, queries)
    lengths = np.clip(np.rint(random.normal(mean, spread, queries)), _SHORTEST, tables.max_length)
    return Pool(lengths.astype(np.intp), of_task.astype(np.intp), kinds[of_task].astype(np.intp))


def spread_threshold(
    tables: Tables,
    *,
    spreads: Sequence[float] = (0.5, 1, 2, 3, 4, 6, 8, 12, 16),
    tasks: Sequence[int] = (32, 64, 128),
    queries: int = QUERIES,
    mean: float = MEAN_TOKENS,
    seed: int = 0,
) -> float:
    """The threshold of `BySpread` for a profile, which the rule of §6.4 requires in advance.

    Args:
        tables: Costs of the base and of tasks' terms.
        spreads: Standard deviations of lengths in tokens that are compared.
        tasks: Numbers of tasks that are compared.
        queries: Number of queries per case.
        mean: Mean of the lengths in tokens.
        seed: Seed of the random generator.
    """
    cases = []
    for count in tasks:
        for spread in spreads:
            pool = draw_pool(tables, queries=queries, tasks=count, spread=spread, mean=mean, seed=seed)
            both = (total_seconds(pool, batching(pool, tables), tables) for batching in (coordinated, alpha_only))
            cases.append(ThresholdCase(spread, *both))
    return best_threshold(cases)
