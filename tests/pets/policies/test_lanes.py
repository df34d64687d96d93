"""The scheduler on several lanes: plans, modes, deadlines, and a simulated machine whose threads are disturbed."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pets.fairness import MIXTURES, Closed, Open, simulate
from tests.pets.policies.costs import TABLES as MINILM
from tests.pets.policies.costs import make_profile, measure_wide
from tidal.pets.policies import (
    Batching,
    PetsBatch,
    PetsQuery,
    PetsScheduler,
    Pool,
    alpha_only,
    batch_seconds,
    beta_only,
    coordinated,
    joint,
    soonest,
)
from tidal.pets.policies.lanes import narrow_factor
from tidal.pets.policies.order import ends
from tidal.pets.policies.planning import Planner

# 1 ms per token and query; 0.5 ms per task.
TABLES = make_profile(lambda length, n: 1.0 * length * n, {"a": lambda length, n: 0.5}, longest=100).tables()
FACTOR = narrow_factor(2)

_QUERIES = st.lists(st.tuples(st.integers(1, 16), st.sampled_from(("a0", "a1", "b0"))), min_size=1, max_size=14)


def query(length: int, arrival: float = 0.0, deadline: float | None = None) -> PetsQuery:
    return PetsQuery("A", "a", length, arrival, deadline)


def narrow_scheduler(*queries: PetsQuery) -> PetsScheduler:
    """A scheduler that has measured that its wide lane is slow."""
    scheduler = PetsScheduler(TABLES, narrow=2)
    measure_wide(scheduler.lanes, 100.0)
    for each in queries:
        scheduler.submit(each)
    return scheduler


def start(scheduler: PetsScheduler, now: float = 0.0) -> PetsBatch:
    batch = scheduler.next_batch(now)
    assert batch is not None
    return batch


class TestPlans:
    # Powers of two: costs are then exactly proportional, also in sums.
    @given(drawn=_QUERIES, factor=st.sampled_from((0.5, 2.0, 4.0)))
    @pytest.mark.parametrize("batching", [joint, soonest, coordinated, alpha_only, beta_only])
    @settings(max_examples=40)
    def test_a_factor_of_all_costs_does_not_change_the_plan(
        self, batching: Batching, drawn: list[tuple[int, str]], factor: float
    ) -> None:
        profile = make_profile(
            lambda length, n: 2 + 0.3 * length * n**0.9,
            {"a": lambda length, n: 0.5 + 0.2 * n, "b": lambda length, n: 0.1 * n * length},
        )
        tables = profile.tables(memory_bytes=60)
        pool = Pool.of(tables, ((task, task[0], length) for length, task in drawn))
        plans = [[batch.tolist() for batch in batching(pool, each)] for each in (tables, tables.scaled(factor))]
        assert plans[0] == plans[1]

    @given(drawn=_QUERIES, lanes=st.integers(1, 4))
    @settings(max_examples=80)
    def test_a_plan_for_lanes_has_the_same_queries_and_no_longer_batches(
        self, drawn: list[tuple[int, str]], lanes: int
    ) -> None:
        tables = make_profile(
            lambda length, n: 2 + 0.3 * length * n**0.9,
            {"a": lambda length, n: 0.5 + 0.2 * n, "b": lambda length, n: 0.1 * n * length},
        ).tables()
        planner = Planner(tables, joint)
        queries = [PetsQuery(task, task[0], length, 0.0) for length, task in drawn]
        plan = planner.plan(queries, ())
        found = planner.on_lanes(plan, lanes)
        assert sorted(map(id, queries)) == sorted(id(each) for batch in found for each in batch.queries)
        assert len(found) <= max(lanes, len(plan))
        assert max(each.seconds for each in found) <= max(each.seconds for each in plan)
        for batch in found:
            pool = Pool.of(tables, ((each.task, each.kind, each.length) for each in batch.queries))
            expected = batch_seconds(pool, [np.arange(len(pool))], tables)[0]
            assert batch.seconds == pytest.approx(expected)

    def test_a_batch_that_would_not_be_shorter_is_not_split(self) -> None:
        tables = make_profile(lambda length, n: 10.0, {"a": lambda length, n: 0.0}).tables()
        planner = Planner(tables, joint)
        plan = planner.plan([query(5) for _ in range(8)], ())
        assert [len(batch.queries) for batch in planner.on_lanes(plan, 4)] == [8]


class TestModes:
    def test_a_short_query_runs_beside_a_large_batch(self) -> None:
        scheduler = narrow_scheduler(query(90))
        large = start(scheduler)
        short = query(4, 0.01)
        scheduler.submit(short)
        assert scheduler.can_start
        batch = start(scheduler, 0.01)
        assert (batch.queries, {batch.lane, large.lane}) == ([short], {1, 2})
        assert batch.seconds == pytest.approx(FACTOR * 0.0045)
        scheduler.submit(query(4, 0.011))
        assert not scheduler.can_start
        assert scheduler.next_batch(0.011) is None
        scheduler.finished(batch, 0.008)
        assert start(scheduler, 0.02).lane == batch.lane

    def test_many_waiting_queries_use_narrow_lanes_and_a_lone_one_all_threads(self) -> None:
        scheduler = PetsScheduler(TABLES, narrow=2)
        scheduler.submit(query(10))
        batch = start(scheduler)
        assert batch.lane == 0
        assert batch.seconds == pytest.approx(0.0105)
        for _ in range(16):
            scheduler.submit(query(10))
        assert not scheduler.can_start
        scheduler.finished(batch, 0.0105)
        assert {start(scheduler, 0.02).lane, start(scheduler, 0.02).lane} == {1, 2}

    def test_a_deadline_that_only_all_threads_meet_uses_them_on_an_idle_machine(self) -> None:
        for deadline, lane in ((0.015, 0), (0.03, 1)):
            assert start(narrow_scheduler(query(10, deadline=deadline))).lane == lane

    def test_queries_that_are_late_on_one_thread_still_share_a_batch(self) -> None:
        """Alone 5.5 ms on all threads, 9.6 ms on one; deadlines in 8 ms."""
        tables = make_profile(lambda length, n: 5.0 + 0.1 * n, {"a": lambda *_: 0.4}).tables()
        scheduler = PetsScheduler(tables, narrow=2)
        measure_wide(scheduler.lanes, 100.0)
        scheduler.submit(query(8))
        first = start(scheduler)
        assert first.lane == 1
        for _ in range(6):
            scheduler.submit(query(8, 0.001, deadline=0.008))
        second = start(scheduler, 0.001)
        assert (second.lane, len(second.queries)) == (2, 6)

    @pytest.mark.parametrize(("disturbed", "better"), [(True, {1, 2}), (False, {0})])
    def test_the_measured_mode_is_used_under_a_long_queue(self, disturbed: bool, better: set[int]) -> None:
        """Disturbed, a batch on all threads takes ten times as long; else one on a single thread does."""
        scheduler = PetsScheduler(MINILM, narrow=2)
        draw = np.random.default_rng(0)
        running: list[tuple[float, int, PetsBatch, float]] = []
        now, lanes = 0.0, list[int]()
        for _ in range(600):
            while len(scheduler) < 40:
                scheduler.submit(PetsQuery("A", "bitfit", int(draw.integers(4, 65)), now))
            while (batch := scheduler.next_batch(now)) is not None:
                took = batch.seconds * (10 if (batch.lane == 0) is disturbed else 1)
                heapq.heappush(running, (now + took, len(lanes), batch, took))
                lanes.append(batch.lane)
            now, _, batch, took = heapq.heappop(running)
            scheduler.finished(batch, took)
        assert sum(lane in better for lane in lanes[300:]) >= 0.95 * len(lanes[300:])


@given(seconds=st.lists(st.floats(0, 9), max_size=6), free=st.lists(st.floats(0, 9), min_size=1, max_size=3))
def test_batches_end_on_the_lane_that_is_free_first(seconds: list[float], free: list[float]) -> None:
    busy = list(free)
    expected = []
    for each in seconds:
        first = busy.index(min(busy))
        busy[first] += each
        expected.append(busy[first])
    assert list(ends(seconds, free)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("load", [Open(0.4), Open(0.7), Closed(2), Closed(32)], ids=str)
def test_lanes_cost_no_throughput_and_no_latency_by_the_profile(load: Closed | Open) -> None:
    wide, lanes = (simulate(PetsScheduler(MINILM, narrow=n), MINILM, MIXTURES["uniform"], load, 700) for n in (0, 2))
    assert lanes.per_second >= 0.99 * wide.per_second
    assert lanes.mean <= 1.03 * wide.mean
