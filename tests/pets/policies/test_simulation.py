"""Comparing batching policies by the latencies that a profile predicts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pets.batching import SPREADS, TUNED_FIXED, compare, speedup, ways
from tests.pets.policies.costs import make_profile
from tidal.pets.policies.spread import draw_pool, spread_threshold

# A pass costs 2 ms plus a cost per token; a task's operator has a fixed cost and grows sublinearly with its queries.
TABLES = make_profile(
    lambda length, n: 2 + 0.05 * length * n,
    {"dense": lambda length, n: 0.3 + 0.01 * length * n**0.8, "sparse": lambda length, n: 0.4 + 0.02 * length * n**0.8},
    longest=96,
    most=64,
).tables()


def test_a_pool_has_the_requested_distribution() -> None:
    pool = draw_pool(TABLES, queries=4000, tasks=16, spread=4.0, mean=32.0, seed=1)
    assert (len(pool), len(set(pool.tasks.tolist()))) == (4000, 16)
    assert (pool.lengths.mean(), pool.lengths.std()) == (pytest.approx(32, abs=0.3), pytest.approx(4, abs=0.2))
    assert all(len(set(pool.kinds[pool.tasks == task])) == 1 for task in range(16))
    assert set(pool.kinds.tolist()) == {0, 1}
    wide = draw_pool(TABLES, queries=4000, tasks=16, spread=90.0, mean=32.0, seed=1)
    assert (wide.lengths.min(), wide.lengths.max()) == (3, 96)


def test_equal_seeds_give_equal_pools() -> None:
    first, again, other = (
        draw_pool(TABLES, queries=64, tasks=8, spread=4.0, mean=32.0, seed=seed) for seed in (1, 1, 2)
    )
    assert (first.lengths == again.lengths).all()
    assert (first.tasks == again.tasks).all()
    assert (first.lengths != other.lengths).any()


def test_all_policies_are_compared_on_all_pools() -> None:
    found = compare(TABLES, ways(32), tasks=(8, 16), queries=128)
    assert len(found) == 7 * 2 * len(SPREADS)
    assert {each.batching for each in found} == {*ways(32), TUNED_FIXED}
    assert all(np.isfinite(each.seconds) and each.batches >= 2 for each in found)
    assert speedup(found, "joint", "joint") == 1
    assert speedup(found, TUNED_FIXED, "fixed") >= 1
    assert speedup(found, "joint", "best_of") >= 1
    assert speedup(found, "best_of", "coordinated") >= 1
    assert speedup(found, "joint", TUNED_FIXED) > 1


def test_a_speedup_is_the_mean_of_ratios_over_pools() -> None:
    found = compare(TABLES, ways(32), spreads=(1, 8), tasks=(8,), queries=64)
    near, far = ({each.batching: each.seconds for each in found if each.spread == spread} for spread in (1, 8))
    wanted = (near["fixed"] / near["joint"] + far["fixed"] / far["joint"]) / 2
    assert speedup(found, "joint", "fixed") == pytest.approx(wanted)


def test_the_spread_threshold_depends_on_the_dominant_cost() -> None:
    padding = make_profile(lambda length, n: 1 + length * n, {"a": lambda length, n: 0.1}, longest=96, most=8)
    operators = make_profile(lambda length, n: 1.0, {"a": lambda length, n: 9.0}, longest=96, most=8)
    assert spread_threshold(padding.tables(), queries=64) < 0.5
    assert spread_threshold(operators.tables(), queries=64) > 16
