"""Batching functions on mixed lengths and kinds, compared by predicted time (PetS §6.4, Figure 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.pets.policies import Batching, Fixed, alpha_only, best_of, beta_only, coordinated, joint, total_seconds
from tidal.pets.policies.spread import MEAN_TOKENS, QUERIES, draw_pool
from tidal.pets.profile import Tables

# The paper's protocol.
SPREADS = (1, 2, 4, 8)
TASKS = (32, 64, 128)
# Sizes that `tuned_fixed` tries, up to the largest batch of the profile.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
TUNED_FIXED = "tuned_fixed"


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted seconds of a batching function on a pool (Eq. 3), and its number of batches."""

    batching: str
    spread: float  # standard deviation of the lengths, in tokens
    tasks: int
    seconds: float
    batches: int


def ways(fixed_size: int) -> dict[str, Batching]:
    """Return the paper's four batching functions, and the two that combine them, by name."""
    return {
        "fixed": Fixed(fixed_size),
        "alpha_only": alpha_only,
        "beta_only": beta_only,
        "coordinated": coordinated,
        "best_of": best_of,
        "joint": joint,
    }


def compare(
    tables: Tables,
    batchings: Mapping[str, Batching],
    *,
    spreads: Sequence[float] = SPREADS,
    tasks: Sequence[int] = TASKS,
    queries: int = QUERIES,
    mean: float = MEAN_TOKENS,
    seed: int = 0,
) -> list[Predicted]:
    """Compare all batching functions on all pools, with `tuned_fixed`, the best fixed size of each pool.

    Args:
        tables: Tables of the profile.
        batchings: Batching functions by name.
        spreads: Standard deviations of the lengths in tokens.
        tasks: Numbers of tasks.
        queries: Number of queries of a pool.
        mean: Mean length in tokens.
        seed: Seed of the pools.
    """
    found = []
    for count in tasks:
        for spread in spreads:
            pool = draw_pool(tables, queries=queries, tasks=count, spread=spread, mean=mean, seed=seed)
            fixed = [Fixed(size)(pool, tables) for size in _SIZES if size <= tables.max_batch]
            plans = {name: batching(pool, tables) for name, batching in batchings.items()}
            plans[TUNED_FIXED] = min(fixed, key=lambda plan: total_seconds(pool, plan, tables))
            for name, plan in plans.items():
                found.append(Predicted(name, spread, count, total_seconds(pool, plan, tables), len(plan)))
    return found


def speedup(found: Sequence[Predicted], batching: str, over: str) -> float:
    """Return the mean speed-up of a batching function over another, over the pools."""
    seconds = {(each.batching, each.spread, each.tasks): each.seconds for each in found}
    ratios = [
        seconds[over, spread, tasks] / took for (name, spread, tasks), took in seconds.items() if name == batching
    ]
    return float(np.mean(ratios))
