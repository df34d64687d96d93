"""Which queries run when not all deadlines can be met: those with the highest utility per second."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pets.policies.costs import make_profile
from tidal.pets.policies import PetsBatch, PetsQuery, PetsScheduler, Pool, batch_seconds
from tidal.pets.policies.order import first_batch
from tidal.pets.policies.utility import UtilitySelector, all_in_time

# A pass takes 2 ms plus a cost per token, and each task in it adds a cost.
PROFILE = make_profile(
    lambda length, n: 2 + 0.25 * length * n, {"a": lambda length, n: 0.5, "b": lambda length, n: 0.1 * n * length}
)
TABLES = PROFILE.tables(memory_bytes=120)


def seconds(*queries: PetsQuery) -> float:
    pool = Pool.of(TABLES, ((query.task, query.kind, query.length) for query in queries))
    return float(batch_seconds(pool, [np.arange(len(pool))], TABLES)[0])


def query(length: int = 4, deadline: float | None = 1.0, utility: float = 1.0, task: str = "a0") -> PetsQuery:
    return PetsQuery(task, task[0], length, 0.0, deadline, utility)


@pytest.mark.parametrize(("deadline", "first"), [(3.0, 0), (2.9, 1)])
def test_the_preferred_batch_is_first_if_the_others_end_by_their_deadlines(deadline: float, first: int) -> None:
    plan = [PetsBatch([query(deadline=None)], None, 1.0), PetsBatch([query(deadline=deadline)], None, 2.0)]
    assert first_batch(plan, [0.0], 0) == first


@given(st.lists(st.tuples(st.floats(0.001, 0.02), st.floats(0.0, 0.06)), max_size=5))
def test_all_in_time_holds_if_any_order_meets_all_deadlines(batches: list[tuple[float, float]]) -> None:
    plan = [PetsBatch([query(deadline=deadline)], None, takes) for takes, deadline in batches]

    def in_order(order: tuple[int, ...]) -> bool:
        now = 0.0
        for place in order:
            now += batches[place][0]
            if now > batches[place][1]:
                return False
        return True

    assert all_in_time(plan, [0.0]) == any(map(in_order, itertools.permutations(range(len(plan)))))


_QUERIES = st.lists(
    st.tuples(
        st.integers(1, 16), st.one_of(st.none(), st.floats(0.0, 0.1)), st.floats(0, 5), st.sampled_from(("a0", "b0"))
    ),
    min_size=1,
    max_size=40,
)


class TestBest:
    @given(_QUERIES)
    @settings(max_examples=80)
    def test_it_is_in_time_and_earns_at_least_as_much_as_the_best_single_query(self, drawn: list[tuple]) -> None:
        alone = [TABLES.alone_s(TABLES.kind(task[0]), length) for length, _, _, task in drawn]
        waiting = [
            PetsQuery(task, task[0], length, -0.05, None if room is None else room + takes, utility)
            for (length, room, utility, task), takes in zip(drawn, alone, strict=True)
        ]
        selector = UtilitySelector(TABLES)
        for each in waiting:
            selector.note_arrival(each)
        batch = selector.best_batch(waiting, 0.0, TABLES)
        assert batch.copy is None
        assert batch.seconds == pytest.approx(seconds(*batch.queries))
        assert np.isfinite(batch.seconds)
        assert len(set(batch.queries)) == len(batch.queries) > 0
        assert all(each.deadline is None or batch.seconds <= each.deadline + 1e-12 for each in batch.queries)
        price, best_single = selector.price(0.0), max(waiting, key=selector.utility_per_s)
        earned = sum(each.utility for each in batch.queries) - price * batch.seconds
        assert earned >= best_single.utility - price * seconds(best_single) - 1e-9

    def test_of_equal_utility_the_shorter_query_runs_first(self) -> None:
        long, short = query(16), query(1)
        assert UtilitySelector(TABLES).best_batch([long, short], 0.0, TABLES).queries[0] is short

    def test_a_query_that_would_delay_one_of_higher_utility_is_left_out(self) -> None:
        high = query(utility=9.0, deadline=seconds(query()) + 1e-4)
        others = [query(utility=2.0, task=f"a{number}") for number in range(3)]
        assert UtilitySelector(TABLES).best_batch([*others, high], 0.0, TABLES).queries == [high]

    def test_queries_without_utility_run_if_there_are_no_others(self) -> None:
        assert len(UtilitySelector(TABLES).best_batch([query(utility=0.0) for _ in range(5)], 0.0, TABLES).queries) == 5


class TestPrice:
    def test_is_the_utility_per_second_of_the_first_query_without_time(self) -> None:
        selector = UtilitySelector(TABLES)
        queries = [query(utility=utility) for utility in (3.0, 1.0, 4.0, 2.0)]
        for each in queries:
            selector.note_arrival(each)
        takes = queries[0].utility / selector.utility_per_s(queries[0])
        assert selector.price(0.5 * takes) == selector.utility_per_s(queries[2])
        assert selector.price(2.5 * takes) == selector.utility_per_s(queries[3])
        assert selector.price(4.5 * takes) == 0.0

    def test_without_arrivals_is_zero(self) -> None:
        assert UtilitySelector(TABLES).price(1.0) == 0.0

    def test_excludes_queries_of_lower_utility(self) -> None:
        selector = UtilitySelector(TABLES)
        low, high = query(utility=0.1), [query(utility=5.0) for _ in range(3)]
        for each in (low, *high):
            selector.note_arrival(each)
        takes = low.utility / selector.utility_per_s(low)
        assert set(selector.best_batch([low, *high], 2.5 * takes, TABLES).queries) == set(high)
        assert set(selector.best_batch([low, *high], 4.5 * takes, TABLES).queries) == {low, *high}


class TestScheduler:
    def scheduler(self, queries: list[PetsQuery], *, by_utility: bool) -> PetsScheduler:
        found = PetsScheduler(TABLES, by_utility=by_utility)
        for each in queries:
            found.submit(each)
        return found

    def started(self, queries: list[PetsQuery], *, by_utility: bool) -> set[PetsQuery]:
        batch = self.scheduler(queries, by_utility=by_utility).next_batch(0.0)
        assert batch is not None
        return set(batch.queries)

    def test_utility_has_no_effect_if_all_deadlines_can_be_met(self) -> None:
        queries = [query(length, utility=length) for length in (1, 1, 1, 16, 16)]
        assert self.started(queries, by_utility=True) == self.started(queries, by_utility=False) == set(queries[:3])

    def test_the_queries_of_highest_utility_run(self) -> None:
        late = seconds(*(query(16) for _ in range(2))) + 1e-4
        queries = [query(length, late, utility=length**2) for length in (1, 1, 1, 16, 16)]
        assert self.started(queries, by_utility=False).isdisjoint(queries[3:])
        assert self.started(queries, by_utility=True) >= set(queries[3:])

    def test_queries_left_out_are_planned_again_or_expire(self) -> None:
        late = seconds(*(query(16) for _ in range(2))) + 1e-4
        queries = [query(16, late, utility=utility) for utility in (1.0, 5.0, 5.0, 1.0)]
        scheduler = self.scheduler(queries, by_utility=True)
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        assert set(batch.queries) == set(queries[1:3])
        scheduler.finished(batch)
        assert scheduler.next_batch(batch.seconds) is None
        assert set(scheduler.expired(batch.seconds)) == {queries[0], queries[3]}

    def test_a_query_without_a_deadline_does_not_starve(self) -> None:
        """Beside it, more queries than can be served in time arrive, each with a thousand times the utility."""
        modest = PetsQuery("m", "a", 16, 0.0, None, 0.001)
        scheduler = self.scheduler([modest], by_utility=True)
        now, batches = 0.0, 0
        while batches < 200:
            for _ in range(12):
                scheduler.submit(PetsQuery("d", "a", 16, now, now + 3 * seconds(query(16)), 1.0))
            scheduler.expired(now)
            batch = scheduler.next_batch(now)
            assert batch is not None
            if modest in batch.queries:
                break
            now += batch.seconds
            batches += 1
            scheduler.finished(batch)
        assert 1 <= batches <= 20
