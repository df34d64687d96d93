"""The scheduler's queue: when batches start, deadlines, order, merged copies, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pets.policies.costs import make_profile
from tidal.errors import InvalidArgument
from tidal.pets.policies import Batching, PetsBatch, PetsQuery, PetsScheduler, alpha_only, beta_only, coordinated, joint
from tidal.pets.policies.lanes import narrow_factor
from tidal.pets.profile import Tables

# A shared pass saves nothing: every batch is one query, which takes 1 ms per token.
NO_GAIN = make_profile(lambda length, n: length * n**1.1, {"a": lambda length, n: 0.0}, longest=100).tables()
# A shared pass saves most: a pass takes 10 ms, and each task in it 1 ms.
ALL_GAIN = make_profile(lambda length, n: 10.0, {"a": lambda length, n: 1.0}, longest=100).tables()


def query(length: int, arrival: float = 0.0, deadline: float | None = None, task: str = "A") -> PetsQuery:
    return PetsQuery(task, "a", length, arrival, deadline)


def submitted(tables: Tables, *queries: PetsQuery, batching: Batching = joint) -> PetsScheduler:
    scheduler = PetsScheduler(tables, batching)
    for each in queries:
        scheduler.submit(each)
    return scheduler


def start(scheduler: PetsScheduler, now: float = 0.0) -> PetsBatch:
    batch = scheduler.next_batch(now)
    assert batch is not None
    return batch


def drain(scheduler: PetsScheduler, now: float = 0.0) -> list[list[PetsQuery]]:
    """Batches in the order in which they run, each for as long as the profile predicts."""
    order = []
    while (batch := scheduler.next_batch(now)) is not None:
        order.append(list(batch.queries))
        now += batch.seconds
        scheduler.finished(batch)
    return order


class TestBatches:
    def test_all_waiting_queries_are_planned_when_the_engine_becomes_free(self) -> None:
        first, second, third = query(10), query(10, 0.001, task="B"), query(20, 0.002, task="C")
        scheduler = submitted(ALL_GAIN, first)
        batch = start(scheduler)
        assert (batch.queries, batch.copy, batch.seconds) == ([first], None, pytest.approx(0.011))
        scheduler.submit(second)
        scheduler.submit(third)
        assert not scheduler.can_start
        assert scheduler.next_batch(0.005) is None
        scheduler.finished(batch)
        assert scheduler.can_start
        batch = start(scheduler, 0.011)
        assert set(batch.queries) == {second, third}
        assert batch.seconds == pytest.approx(0.012)
        scheduler.finished(batch)
        assert (len(scheduler), scheduler.can_start, scheduler.next_batch(1.0)) == (0, False, None)

    def test_the_configured_batching_is_used(self) -> None:
        tables = make_profile(lambda length, n: 10.0, {"a": lambda length, n: 1.0 * n**2}).tables()
        queries = [query(5) for _ in range(4)]
        assert len(drain(submitted(tables, *queries, batching=beta_only))) == 4
        assert len(drain(submitted(tables, *queries, batching=coordinated))) == 1

    def test_a_plan_made_in_advance_is_the_same(self) -> None:
        queries = [query(length, task=str(length % 3)) for length in (5, 60, 7, 80, 9)]
        ahead, late = submitted(NO_GAIN, *queries), submitted(NO_GAIN, *queries)
        ahead.prepare()
        assert drain(ahead) == drain(late)

    def test_a_query_that_is_too_long_is_refused(self) -> None:
        scheduler = submitted(ALL_GAIN)
        for length in (0, 101):
            with pytest.raises(InvalidArgument, match=f"a query has {length} tokens; accepted are 1 to 100"):
                scheduler.submit(query(length))
        assert len(scheduler) == 0

    def test_a_requeued_batch_runs_later(self) -> None:
        scheduler = submitted(ALL_GAIN, query(5), query(6))
        batch = start(scheduler)
        scheduler.requeue(batch)
        assert (len(scheduler), scheduler.can_start) == (2, False)
        scheduler.finished(batch)
        assert set(start(scheduler).queries) == set(batch.queries)

    def test_a_long_queue_is_planned_in_parts_the_most_urgent_queries_first(self) -> None:
        scheduler = PetsScheduler(ALL_GAIN, horizon=4)
        old = [query(5, arrival=0.001 * i) for i in range(12)]
        urgent = query(5, arrival=0.012, deadline=0.04)
        for each in (*reversed(old), urgent):
            scheduler.submit(each)
        found = [set(batch) for batch in drain(scheduler, 0.012)]
        # From the first batch on, it is known how long all of them take.
        assert found == [set(old[:4]), {*old[4:7], urgent}, set(old[7:11]), {old[11]}]

    def test_clear_removes_waiting_queries(self) -> None:
        scheduler = submitted(ALL_GAIN, query(5), query(6, deadline=1.0))
        scheduler.clear()
        assert (len(scheduler), scheduler.can_start, scheduler.expired(9.0)) == (0, False, [])
        scheduler.submit(query(7))
        assert len(drain(scheduler)) == 1


class TestOrder:
    def test_the_batch_of_the_oldest_query_runs_first(self) -> None:
        long, short, middle = query(90), query(10, 0.1), query(40, 0.2)
        assert drain(submitted(NO_GAIN, short, middle, long), 0.2) == [[long], [short], [middle]]

    def test_later_queries_run_with_the_oldest(self) -> None:
        # Queries of equal length share a pass of 30 ms, the single long one takes 20 ms; all together 100 ms.
        tables = make_profile(
            lambda length, n: (30 if length == 10 else 100) if n > 1 else 20, {"a": lambda *_: 0.0}, longest=60
        ).tables()
        oldest, lone, crowd = query(10), query(60, 0.1), [query(10, 0.2) for _ in range(9)]
        assert [set(batch) for batch in drain(submitted(tables, lone, *crowd, oldest))] == [{oldest, *crowd}, {lone}]

    def test_a_query_does_not_starve_behind_cheaper_ones_with_deadlines(self) -> None:
        victim = query(90, 0.0)
        scheduler = submitted(NO_GAIN, victim)
        now = 0.0
        for _ in range(500):
            scheduler.submit(query(10, now, deadline=now + 0.03))
            scheduler.expired(now)
            batch = start(scheduler, now)
            if victim in batch.queries:
                break
            now += batch.seconds
            scheduler.finished(batch)
        assert 0.1 < now < 0.13  # both take 0.1 s

    def test_a_query_that_would_delay_every_batch_does_not_starve(self) -> None:
        # Together they take 20 ms, the urgent one has 16: it runs alone although both are planned for one batch.
        tables = make_profile(lambda length, n: 10.0 + 5 * n, {"a": lambda *_: 0.0}).tables()
        victim = query(8)
        scheduler, now = submitted(tables, victim), 0.0
        for _ in range(50):
            scheduler.submit(query(8, now, deadline=now + 0.016))
            batch = start(scheduler, now)
            if victim in batch.queries:
                break
            now += batch.seconds
            scheduler.finished(batch)
        assert 0.02 < now < 0.06

    def test_an_overdue_query_yields_to_a_deadline_only_once(self) -> None:
        old = [query(50, 0.001 * i) for i in range(2)]
        urgent = [query(10, 2.0, deadline=2.0 + 0.015 + 0.06 * i) for i in range(2)]
        scheduler = submitted(NO_GAIN, *old, *urgent)
        assert drain(scheduler, 2.0) == [[urgent[0]], [old[0]], [urgent[1]], [old[1]]]


class TestDeadlines:
    def test_the_earliest_deadline_runs_first_if_it_would_be_missed_otherwise(self) -> None:
        cheap, urgent = query(10), query(50, deadline=0.055)
        assert drain(submitted(NO_GAIN, cheap, urgent)) == [[urgent], [cheap]]
        relaxed = query(50, deadline=0.061)
        assert drain(submitted(NO_GAIN, cheap, relaxed)) == [[cheap], [relaxed]]

    def test_later_deadlines_are_respected_too(self) -> None:
        # With the cheap query first, the first deadline is met, but not the second.
        cheap, first, second = query(10), query(30, deadline=0.045), query(50, deadline=0.085)
        assert drain(submitted(NO_GAIN, cheap, first, second)) == [[first], [second], [cheap]]

    def test_a_batch_leaves_out_queries_that_would_make_it_late(self) -> None:
        tables = make_profile(lambda length, n: 10 + 0.1 * length * n, {"a": lambda *_: 0.0}, longest=100).tables()
        tight = query(20, deadline=0.0162)  # 12 ms alone, 16 ms with two shorter queries
        short, long = [query(10) for _ in range(3)], query(21)
        scheduler = submitted(tables, long, *short, tight)
        batch = start(scheduler)
        assert set(batch.queries) == {tight, *short[:2]}
        assert batch.seconds == pytest.approx(0.016)
        scheduler.finished(batch)
        assert drain(scheduler, 0.016) == [[short[2], long]]

    def test_the_terms_of_tasks_count_when_queries_are_left_out(self) -> None:
        # {A} 14 ms, {A, A} 16, {A, A, B} 20.
        tables = make_profile(lambda length, n: 10.0 + n, {"a": lambda length, n: 2.0 + n}).tables()
        tight, same, other = query(8, deadline=0.0165), query(8), query(8, 0.001, task="B")
        batch = start(submitted(tables, other, same, tight), 0.0)
        assert batch.queries == [tight, same]
        assert batch.seconds == pytest.approx(0.016)

    def test_terms_do_not_count_on_a_merged_copy(self) -> None:
        tables = make_profile(lambda length, n: 10.0 + n, {"a": lambda length, n: 2.0 + n}).tables()
        scheduler = submitted(tables, query(8, deadline=0.0145), *(query(8) for _ in range(5)))
        scheduler.copies = frozenset({"A"})
        batch = start(scheduler)
        assert (batch.copy, len(batch.queries), batch.seconds) == ("A", 4, pytest.approx(0.014))

    def test_queries_that_were_left_out_are_planned_again(self) -> None:
        tables = make_profile(lambda length, n: 5.0 + 5 * n, {"a": lambda *_: 0.0}).tables(max_batch=3)
        tight, second = query(8, deadline=0.0105), query(8, deadline=0.026)
        scheduler = submitted(tables, tight, second, *(query(8) for _ in range(4)))
        order = drain(scheduler)
        assert order[0] == [tight]
        assert second in order[1]

    def test_a_query_that_became_late_after_planning_is_not_run(self) -> None:
        late, fine = query(40, deadline=0.05), query(50)
        scheduler = submitted(NO_GAIN, late, fine)
        scheduler.prepare()
        assert start(scheduler, 0.02).queries == [fine]
        assert scheduler.expired(0.02) == [late]

    def test_an_urgent_query_leaves_a_batch_that_is_too_slow(self) -> None:
        # The long queries take 60 ms together, too much for the one that has 28 ms; alone it takes 25 ms.
        tables = make_profile(lambda length, n: 5 if length <= 10 else 20 + 5 * n, {"a": lambda *_: 0.0}, longest=40)
        crowd, long, tight = [query(10) for _ in range(5)], [query(40) for _ in range(7)], query(40, deadline=0.028)
        order = drain(submitted(tables.tables(), *crowd, *long, tight))
        assert [set(batch) for batch in order] == [{tight}, set(crowd), set(long)]

    def test_a_query_that_cannot_meet_its_deadline_is_never_run(self) -> None:
        late, fine = query(50, deadline=0.049), query(50)
        scheduler = submitted(NO_GAIN, late, fine)
        assert drain(scheduler) == [[fine]]
        assert len(scheduler) == 1
        assert scheduler.expired(0.0) == [late]
        assert scheduler.expired(9.0) == []
        assert len(scheduler) == 0

    def test_passed_deadlines_are_dropped(self) -> None:
        scheduler = submitted(NO_GAIN)
        for i in range(300):
            scheduler.submit(query(10, i * 1e-3, deadline=1e6))
            scheduler.finished(start(scheduler, i * 1e-3))
        assert len(scheduler._latest) < 100


class TestCopies:
    # A pass takes 10 ms, and the terms 3 ms per query.
    TABLES = make_profile(lambda length, n: 10.0, {"a": lambda length, n: 3.0 * n}).tables()

    def batches(self, hot: int, others: int) -> list[tuple[str | None, int]]:
        scheduler = submitted(self.TABLES, *(query(5, task="hot") for _ in range(hot)))
        for number in range(others):
            scheduler.submit(query(5, task=str(number)))
        scheduler.copies = frozenset({"hot", "unused"})
        found = []
        while (batch := scheduler.next_batch(0.0)) is not None:
            scheduler.finished(batch)
            found.append((batch.copy, len(batch.queries)))
        return sorted(found, key=str)

    def test_many_queries_of_a_hot_task_run_on_its_copy(self) -> None:
        assert self.batches(4, 3) == [("hot", 4), (None, 3)]

    def test_few_queries_run_with_the_others(self) -> None:
        assert self.batches(3, 3) == [(None, 6)]

    def test_a_single_query_runs_on_the_copy(self) -> None:
        assert self.batches(1, 0) == [("hot", 1)]

    def test_a_removed_copy_is_not_used(self) -> None:
        scheduler = submitted(self.TABLES, *(query(5, task="hot") for _ in range(4)))
        scheduler.copies = frozenset({"hot"})
        scheduler.prepare()
        scheduler.copies = frozenset()
        assert start(scheduler).copy is None


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 16), st.one_of(st.none(), st.floats(0.0, 0.2))),
        st.tuples(st.sampled_from(("next", "expire", "finish", "requeue", "prepare")), st.just(0), st.none()),
        st.tuples(st.just("copies"), st.integers(0, 1), st.none()),
    ),
    max_size=80,
)


@given(
    events=_EVENTS,
    batching=st.sampled_from((joint, coordinated, alpha_only, beta_only)),
    by_utility=st.booleans(),
    narrow=st.sampled_from((0, 2, 3)),
    took=st.lists(st.one_of(st.none(), st.floats(0.001, 0.2)), min_size=1, max_size=9),
)
@settings(max_examples=150, deadline=None)
def test_no_query_is_lost_duplicated_late_or_in_a_forbidden_batch(
    events: list[tuple[str, int, float | None]],
    batching: Batching,
    by_utility: bool,
    narrow: int,
    took: list[float | None],
) -> None:
    profile = make_profile(
        lambda length, n: 2 + 0.3 * length * n**0.9,
        {"a": lambda length, n: 0.5 + 0.2 * n, "b": lambda length, n: 0.1 * n * length},
    )
    tables = profile.tables(memory_bytes=60)
    scheduler = PetsScheduler(tables, batching, horizon=6, by_utility=by_utility, narrow=narrow)
    waiting: set[PetsQuery] = set()
    running: list[PetsBatch] = []
    now = 0.0

    def run() -> None:
        could = scheduler.can_start
        batch = scheduler.next_batch(now)
        if batch is None:
            assert not could or not scheduler.can_start
            return
        assert batch.lane not in {each.lane for each in running}
        assert not running or 0 not in (batch.lane, *(each.lane for each in running))
        assert batch.lane <= narrow
        running.append(batch)
        found = set(batch.queries)
        assert len(found) == len(batch.queries) > 0
        assert found <= waiting
        waiting.difference_update(found)
        assert max(each.length for each in found) * len(found) <= 60
        assert len(found) <= 16
        assert batch.copy in (None, *scheduler.copies)
        if batch.copy is not None:
            assert {each.task for each in found} == {batch.copy}
        for each in found:
            if each.deadline is not None:
                alone = tables.alone_s(tables.kind(each.kind), each.length)
                assert now + alone <= each.deadline + 1e-12
                only_wide = batch.lane > 0 and now + narrow_factor(narrow) * alone > each.deadline - 1e-12
                assert only_wide or now + batch.seconds <= each.deadline + 1e-12

    for number, (event, value, relative) in enumerate(events):
        now += 0.004
        if event == "submit":
            task = f"{'ab'[number % 2]}{number % 5}"
            deadline = None if relative is None else now + relative
            waiting.add(added := PetsQuery(task, task[0], value, now, deadline, utility=float(number % 3)))
            scheduler.submit(added)
        elif event == "next":
            run()
        elif event == "expire":
            for each in scheduler.expired(now):
                assert each.deadline is not None
                assert now + tables.alone_s(tables.kind(each.kind), each.length) > each.deadline
                waiting.remove(each)
        elif event == "prepare":
            scheduler.prepare()
        elif event == "copies":
            scheduler.copies = frozenset({"a0", "b1"} if value else ())
        elif running:
            ended = running.pop(number % len(running))
            if event == "requeue":
                scheduler.requeue(ended)
                waiting.update(ended.queries)
            scheduler.finished(ended, None if event == "requeue" else took[number % len(took)])
        assert len(scheduler) == len(waiting)
    while waiting:
        for ended in running:
            scheduler.finished(ended)
        running.clear()
        run()
        assert running or not scheduler.can_start
        waiting.difference_update(scheduler.expired(now))
    assert len(scheduler) == 0
