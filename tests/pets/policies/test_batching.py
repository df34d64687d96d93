"""Both dynamic programmes against brute force, a worked example, and invariants of every batching policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pets.policies.costs import alpha, batch_latency, beta, make_profile, partitions, splits
from tests.pets.policies.pools import LONGEST, MOST, any_pool, any_tables
from tidal.errors import InvalidArgument
from tidal.pets.policies import (
    Batching,
    BatchPlan,
    BySpread,
    Fixed,
    Pool,
    alpha_only,
    batch_seconds,
    best_of,
    beta_only,
    coordinated,
    joint,
    soonest,
    sum_of_waiting,
    total_seconds,
)
from tidal.pets.policies.batching import _Items, _shared_costs, _terms_costs
from tidal.pets.profile import Tables

ALL: dict[str, Batching] = {
    "fixed": Fixed(3),
    "alpha_only": alpha_only,
    "beta_only": beta_only,
    "coordinated": coordinated,
    "by_spread": BySpread(1.5),
    "best_of": best_of,
    "joint": joint,
    "soonest": soonest,
}


def beta_total(tables: Tables, pool: Pool, plan: BatchPlan) -> float:
    return sum(beta(tables, int(pool.kinds[b[0]]), pool.lengths[b].tolist()) for b in plan)


def alpha_total(tables: Tables, pool: Pool, plan: BatchPlan) -> float:
    return sum(alpha(tables, pool.lengths[batch].tolist()) for batch in plan)


def by_longest(pool: Pool, plan: BatchPlan) -> BatchPlan:
    return sorted(plan, key=lambda batch: int(pool.lengths[batch].max()))


@given(tables=any_tables(), pool=any_pool())
@settings(max_examples=40, deadline=None)
def test_step_1_finds_the_best_split_of_every_task(tables: Tables, pool: Pool) -> None:
    plan = beta_only(pool, tables)
    assert all(len(set(pool.tasks[batch])) == 1 for batch in plan)
    best = 0.0
    for task in set(pool.tasks.tolist()):
        own = np.flatnonzero(pool.tasks == task)
        kind, lengths = int(pool.kinds[own[0]]), sorted(pool.lengths[own].tolist())
        best += min(
            sum(beta(tables, kind, [lengths[i] for i in group]) for group in split) for split in splits(len(lengths))
        )
    assert beta_total(tables, pool, plan) == pytest.approx(best)


@given(tables=any_tables(), pool=any_pool())
@settings(max_examples=40, deadline=None)
def test_step_2_finds_the_best_split_of_the_mini_batches(tables: Tables, pool: Pool) -> None:
    minis = by_longest(pool, beta_only(pool, tables))
    plan = coordinated(pool, tables)
    held = [set(batch.tolist()) for batch in plan]
    assert all(any(set(mini.tolist()) <= batch for batch in held) for mini in minis)
    best = (
        min(
            sum(alpha(tables, pool.lengths[np.concatenate([minis[i] for i in group])].tolist()) for group in split)
            for split in splits(len(minis))
            if minis
        )
        if minis
        else 0.0
    )
    assert alpha_total(tables, pool, plan) == pytest.approx(best)


@given(tables=any_tables(), pool=any_pool())
@settings(max_examples=40, deadline=None)
def test_alpha_only_finds_the_best_split_of_the_queries(tables: Tables, pool: Pool) -> None:
    lengths = sorted(pool.lengths.tolist())
    best = min(
        sum(alpha(tables, [lengths[i] for i in group]) for group in split if group) for split in splits(len(pool))
    )
    assert alpha_total(tables, pool, alpha_only(pool, tables)) == pytest.approx(best)


def both_sequences(tables: Tables, pool: Pool) -> Iterator[BatchPlan]:
    """Every split of the queries by length, and of the mini-batches by their longest query."""
    order = np.argsort(pool.lengths, kind="stable")
    for items in ([np.array([place]) for place in order], by_longest(pool, beta_only(pool, tables))):
        for split in splits(len(items)):
            yield [np.concatenate([items[i] for i in group]) for group in split if group]


def latencies(tables: Tables, pool: Pool, plan: BatchPlan) -> list[float]:
    return [batch_latency(tables, pool, batch.tolist()) for batch in plan]


@given(tables=any_tables(), pool=any_pool())
@settings(max_examples=40, deadline=None)
def test_joint_finds_the_best_split_of_both_sequences_by_all_costs(tables: Tables, pool: Pool) -> None:
    best = min(sum(latencies(tables, pool, plan)) for plan in both_sequences(tables, pool))
    assert total_seconds(pool, joint(pool, tables), tables) == pytest.approx(best)


@given(tables=any_tables(), pool=any_pool())
@settings(max_examples=40, deadline=None)
def test_soonest_finds_the_split_with_the_least_total_waiting(tables: Tables, pool: Pool) -> None:
    def waiting(plan: BatchPlan) -> float:
        finish = itertools.accumulate(latencies(tables, pool, plan))
        return sum(len(batch) * at for batch, at in zip(plan, finish, strict=True))

    plan = soonest(pool, tables)
    assert waiting(plan) == pytest.approx(min(map(waiting, both_sequences(tables, pool))))
    assert sum_of_waiting(pool, plan, tables) == pytest.approx(waiting(plan))


@given(tables=any_tables(), pool=any_pool())
@settings(max_examples=40, deadline=None)
def test_costs_of_consecutive_items_equal_equation_2(tables: Tables, pool: Pool) -> None:
    """For every group of consecutive items, the tables of the dynamic programme equal Eq. 2."""
    if not len(pool):
        return
    for items in (_Items.queries(pool), _Items.mini_batches(pool, tables)):
        costs = _shared_costs(items, tables)
        most = costs.shape[1]
        costs += _terms_costs(items, tables, most)
        for last in range(len(items.members)):
            for first in range(max(0, last + 1 - most), last + 1):
                batch = np.concatenate(items.members[first : last + 1]).tolist()
                assert costs[last, first + most - 1 - last] == pytest.approx(batch_latency(tables, pool, batch))


@given(tables=any_tables(), pool=any_pool(most=12))
@settings(max_examples=20, deadline=None)
def test_policies_that_consider_more_costs_are_never_slower(tables: Tables, pool: Pool) -> None:
    took = {name: total_seconds(pool, batching(pool, tables), tables) for name, batching in ALL.items()}
    slack = 1e-12
    assert took["best_of"] <= min(took["coordinated"], took["alpha_only"]) + slack
    assert took["joint"] <= min(took["best_of"], took["beta_only"], took["by_spread"]) + slack


@pytest.mark.parametrize("name", ALL)
@given(tables=any_tables(), pool=any_pool(most=12))
@settings(max_examples=20, deadline=None)
def test_every_query_is_in_exactly_one_allowed_batch(name: str, tables: Tables, pool: Pool) -> None:
    plan = ALL[name](pool, tables)
    assert sorted(place for batch in plan for place in batch.tolist()) == list(range(len(pool)))
    assert all(0 < len(batch) <= tables.max_batch for batch in plan)
    seconds = batch_seconds(pool, plan, tables)
    assert np.isfinite(seconds).all()
    assert seconds == pytest.approx([batch_latency(tables, pool, batch.tolist()) for batch in plan])


@given(
    pool=any_pool(most=6, kinds=1),
    fixed=st.floats(0, 20),
    per_token=st.floats(0.01, 3),
    gain=st.floats(0.3, 1.0),
)
@settings(max_examples=20, deadline=None)
def test_sorting_by_length_is_optimal_where_costs_are_monotonic(
    pool: Pool, fixed: float, per_token: float, gain: float
) -> None:
    """No partition of the queries, contiguous or not, costs less."""
    cost = make_profile(
        lambda length, n: fixed + per_token * length * n**gain,
        {"a": lambda length, n: 0.5 * fixed + per_token * length * n**gain},
        longest=LONGEST,
        most=MOST,
    )
    tables = cost.tables()
    every = list(partitions(range(len(pool))))
    best = min(sum(alpha(tables, pool.lengths[g].tolist()) for g in partition) for partition in every)
    assert alpha_total(tables, pool, alpha_only(pool, tables)) == pytest.approx(best)
    of_one_task = [p for p in every if all(len(set(pool.tasks[g].tolist())) == 1 for g in p)]
    best = min(sum(beta(tables, 0, pool.lengths[g].tolist()) for g in partition) for partition in of_one_task)
    assert beta_total(tables, pool, beta_only(pool, tables)) == pytest.approx(best)


class TestByHand:
    """α[N][L] = 4 + N·L, β[n][l] = 3 + n·l / 2; task A has queries of 2, 3 and 8 tokens, task B one of 3."""

    TABLES = make_profile(lambda length, n: 4 + n * length, {"a": lambda length, n: 3 + n * length / 2}).tables()
    POOL = Pool.of(TABLES, [("A", "a", 8), ("B", "a", 3), ("A", "a", 2), ("A", "a", 3)])

    def sets(self, batching: Batching) -> list[set[int]]:
        return [set(batch.tolist()) for batch in batching(self.POOL, self.TABLES)]

    def test_step_1(self) -> None:
        # {2, 3} and {8}: 6 + 7 ms; all three 15, one by one 15.5, {2} and {3, 8} 15.
        assert sorted(map(sorted, self.sets(beta_only))) == [[0], [1], [2, 3]]

    def test_step_2(self) -> None:
        # {2, 3, 3} and {8}: 13 + 12 ms; all 36, all apart 29, {2, 3} and {3, 8} 30. By the length of the first
        # mini-batch, as Eq. 5 is printed, all together would seem to take 16.
        assert self.sets(coordinated) == [{1, 2, 3}, {0}]
        # Terms: A 3 + 3, B 3 + 1.5, A 3 + 4.
        assert total_seconds(self.POOL, coordinated(self.POOL, self.TABLES), self.TABLES) == pytest.approx(42.5e-3)

    def test_fixed_is_in_order_of_arrival(self) -> None:
        assert [batch.tolist() for batch in Fixed(3)(self.POOL, self.TABLES)] == [[0, 1, 2], [3]]

    def test_joint_weighs_shared_costs_and_terms_together(self) -> None:
        # Four queries of one task: an operator costs 10 regardless of its size, and sharing a pass saves nothing, while
        # padding the three short queries costs 3·14·0.5 = 21. Step 1 sees only the operator, α-only only the padding.
        tables = make_profile(lambda length, n: 0.5 * length * n**1.01, {"a": lambda length, n: 10.0}).tables()
        pool = Pool.of(tables, [("A", "a", 16), ("A", "a", 2), ("A", "a", 2), ("A", "a", 2)])
        assert len(coordinated(pool, tables)) == 1
        assert len(alpha_only(pool, tables)) == 4
        assert [sorted(batch.tolist()) for batch in joint(pool, tables)] == [[1, 2, 3], [0]]


def test_soonest_pairs_two_queries_only_if_nearly_free_and_many_for_any_gain() -> None:
    tables = make_profile(lambda length, n: 10.0 if n == 1 else 9.0 * n, {"a": lambda length, n: 0.0}).tables()
    pair, crowd = (Pool.of(tables, [("A", "a", 8)] * count) for count in (2, 16))
    assert [len(batch) for batch in joint(pair, tables)] == [2]
    assert [len(batch) for batch in soonest(pair, tables)] == [1, 1]
    assert set(map(len, soonest(crowd, tables)[:4])) == {2}


def test_by_spread_chooses_by_the_standard_deviation_of_lengths() -> None:
    tables = make_profile(lambda length, n: 4 + n * length, {"a": lambda length, n: 3.0}).tables()
    pool = Pool.of(tables, [("A", "a", 2), ("A", "a", 6), ("A", "a", 6), ("A", "a", 2)])  # deviation 2
    near, far = BySpread(2.1)(pool, tables), BySpread(2.0)(pool, tables)
    assert [batch.tolist() for batch in near] == [batch.tolist() for batch in coordinated(pool, tables)]
    assert [batch.tolist() for batch in far] == [batch.tolist() for batch in alpha_only(pool, tables)]
    assert len(near) != len(far)


def test_memory_limits_the_padded_tokens_of_a_batch() -> None:
    profile = make_profile(lambda length, n: 1.0, {"a": lambda length, n: 1.0})
    tables = profile.tables(memory_bytes=12)
    pool = Pool.of(tables, [("A", "a", length) for length in (1, 1, 1, 1, 4, 4, 4, 12)])
    for batching in ALL.values():
        plan = batching(pool, tables)
        assert all(len(batch) * pool.lengths[batch].max() <= 12 for batch in plan)
    assert len(joint(pool, tables)) == 3


def test_mini_batches_of_one_task_share_an_operator_in_a_batch() -> None:
    tables = make_profile(lambda length, n: 1.0, {"a": lambda length, n: 10.0 * n**2 + length}).tables()
    pool = Pool.of(tables, [("A", "a", 2), ("A", "a", 5), ("B", "a", 3)])
    assert len(beta_only(pool, tables)) == 3
    (batch,) = coordinated(pool, tables)
    assert batch_seconds(pool, [batch], tables).tolist() == pytest.approx([(1 + 45 + 13) / 1e3])


def test_a_query_that_cannot_run_alone_is_refused() -> None:
    tables = make_profile(lambda length, n: 1.0, {"a": lambda length, n: 1.0}).tables(memory_bytes=10)
    with pytest.raises(InvalidArgument, match="a query has 11 tokens; the longest that may run has 10"):
        Pool.of(tables, [("A", "a", 3), ("A", "a", 11)])


def test_an_empty_pool_gives_no_batches() -> None:
    tables = make_profile(lambda length, n: 1.0, {"a": lambda length, n: 1.0}).tables()
    for batching in ALL.values():
        assert batching(Pool.of(tables, []), tables) == []
