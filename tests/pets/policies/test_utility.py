"""What runs when not all that waits can be in time: what earns most a second."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pets.policies.costs import make_profile
from tidal.pets.policies import PetsBatch, PetsQuery, PetsScheduler, Pool, batch_seconds
from tidal.pets.policies.utility import UtilitySelector, all_in_time

# A pass takes 2 ms and something for every token, and each task in it something.
PROFILE = make_profile(
    lambda length, n: 2 + 0.25 * length * n, {"a": lambda length, n: 0.5, "b": lambda length, n: 0.1 * n * length}
)
TABLES = PROFILE.tables(memory_bytes=120)


def seconds(*queries: PetsQuery) -> float:
    pool = Pool.of(TABLES, ((query.task, query.kind, query.length) for query in queries))
    return float(batch_seconds(pool, [np.arange(len(pool))], TABLES)[0])


def query(length: int = 4, deadline: float | None = 1.0, utility: float = 1.0, task: str = "a0") -> PetsQuery:
    return PetsQuery(task, task[0], length, 0.0, deadline, utility)


@given(st.lists(st.tuples(st.floats(0.001, 0.02), st.floats(0.0, 0.06)), max_size=5))
def test_all_in_time_is_whether_any_order_would_do(batches: list[tuple[float, float]]) -> None:
    plan = [PetsBatch([query(deadline=deadline)], None, takes) for takes, deadline in batches]

    def in_order(order: tuple[int, ...]) -> bool:
        now = 0.0
        for place in order:
            now += batches[place][0]
            if now > batches[place][1]:
                return False
        return True

    assert all_in_time(plan, 0.0) == any(map(in_order, itertools.permutations(range(len(plan)))))


_QUERIES = st.lists(
    st.tuples(
        st.integers(1, 16), st.one_of(st.none(), st.floats(0.0, 0.1)), st.floats(0, 5), st.sampled_from(("a0", "b0"))
    ),
    min_size=1,
    max_size=40,
)


class TestBest:
    @given(_QUERIES)
    @settings(max_examples=200)
    def test_it_is_in_time_and_earns_more_than_the_best_single_query(self, drawn: list[tuple]) -> None:
        alone = [TABLES.alone_s(TABLES.kind(task[0]), length) for length, _, _, task in drawn]
        waiting = [
            PetsQuery(task, task[0], length, -0.05, None if room is None else room + takes, utility)
            for (length, room, utility, task), takes in zip(drawn, alone, strict=True)
        ]
        selector = UtilitySelector(TABLES)
        for each in waiting:
            selector.note_arrival(each)
        batch = selector.best_batch(waiting, 0.0)
        assert batch.copy is None
        assert batch.seconds == pytest.approx(seconds(*batch.queries))
        assert np.isfinite(batch.seconds)
        assert len(set(batch.queries)) == len(batch.queries) > 0
        assert all(each.deadline is None or batch.seconds <= each.deadline + 1e-12 for each in batch.queries)
        price, best_single = selector.price(0.0), max(waiting, key=selector.utility_per_s)
        earned = sum(each.utility for each in batch.queries) - price * batch.seconds
        assert earned >= best_single.utility - price * seconds(best_single) - 1e-9

    def test_short_ones_of_equal_utility_first(self) -> None:
        long, short = query(16), query(1)
        assert UtilitySelector(TABLES).best_batch([long, short], 0.0).queries[0] is short

    def test_one_that_would_make_a_dearer_one_late_stays_behind(self) -> None:
        dear = query(utility=9.0, deadline=seconds(query()) + 1e-4)
        others = [query(utility=2.0, task=f"a{number}") for number in range(3)]
        assert UtilitySelector(TABLES).best_batch([*others, dear], 0.0).queries == [dear]

    def test_a_query_without_utility_runs_where_there_is_no_other(self) -> None:
        assert len(UtilitySelector(TABLES).best_batch([query(utility=0.0) for _ in range(5)], 0.0).queries) == 5


class TestPrice:
    def test_is_what_the_last_query_earns_that_there_is_no_time_for(self) -> None:
        selector = UtilitySelector(TABLES)
        queries = [query(utility=utility) for utility in (3.0, 1.0, 4.0, 2.0)]
        for each in queries:
            selector.note_arrival(each)
        takes = queries[0].utility / selector.utility_per_s(queries[0])
        assert selector.price(0.5 * takes) == selector.utility_per_s(queries[2])
        assert selector.price(2.5 * takes) == selector.utility_per_s(queries[3])
        assert selector.price(4.5 * takes) == 0.0

    def test_of_nothing_that_came_is_nothing(self) -> None:
        assert UtilitySelector(TABLES).price(1.0) == 0.0

    def test_keeps_out_lower_utility(self) -> None:
        selector = UtilitySelector(TABLES)
        cheap, dear = query(utility=0.1), [query(utility=5.0) for _ in range(3)]
        for each in (cheap, *dear):
            selector.note_arrival(each)
        takes = cheap.utility / selector.utility_per_s(cheap)
        assert set(selector.best_batch([cheap, *dear], 2.5 * takes).queries) == set(dear)
        assert set(selector.best_batch([cheap, *dear], 4.5 * takes).queries) == {cheap, *dear}


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

    def test_with_time_for_all_utility_changes_nothing(self) -> None:
        queries = [query(length, utility=length) for length in (1, 1, 1, 16, 16)]
        assert self.started(queries, by_utility=True) == self.started(queries, by_utility=False) == set(queries[:3])

    def test_with_utility_the_queries_of_highest_utility_run(self) -> None:
        late = seconds(*(query(16) for _ in range(2))) + 1e-4
        queries = [query(length, late, utility=length**2) for length in (1, 1, 1, 16, 16)]
        assert self.started(queries, by_utility=False).isdisjoint(queries[3:])
        assert self.started(queries, by_utility=True) >= set(queries[3:])

    def test_what_is_left_out_is_planned_for_or_expires(self) -> None:
        late = seconds(*(query(16) for _ in range(2))) + 1e-4
        queries = [query(16, late, utility=utility) for utility in (1.0, 5.0, 5.0, 1.0)]
        scheduler = self.scheduler(queries, by_utility=True)
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        assert set(batch.queries) == set(queries[1:3])
        scheduler.finished()
        assert scheduler.next_batch(batch.seconds) is None
        assert set(scheduler.expired(batch.seconds)) == {queries[0], queries[3]}

    def test_a_query_without_a_deadline_does_not_wait_for_ever_for_dearer_ones(self) -> None:
        """A stream that nobody could serve in time, each of a thousand times the utility."""
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
            scheduler.finished()
        assert 1 <= batches <= 20
