"""The partitioned policy around Algorithm 1: running, deadlines, changes of instances, requeueing, invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.placing import start, take
from tidal.arlo.policies import ArloBatch, ArloQuery, PartitionedPolicy
from tidal.errors import InvalidArgument


def simple(instances: list[int], **more: float) -> PartitionedPolicy:
    """Return a policy over runtimes of 32, 64 and 128 tokens that take 10, 20 and 40 ms; capacities 40, 20 and 10."""
    return PartitionedPolicy([32, 64, 128], [0.01, 0.02, 0.04], 0.4, instances, **more)  # type: ignore[arg-type]


class TestRunning:
    def test_an_instance_runs_one_query_at_a_time_in_order_of_arrival(self) -> None:
        policy = simple([0, 0, 1])
        queries = [ArloQuery(10, t) for t in (2.0, 0.0, 1.0)]
        for query in queries:
            policy.submit(query)
        batch = start(policy)
        assert batch.queries == [queries[1]]
        assert policy.next_batch(0.0) is None
        assert not policy.can_start
        policy.finished(batch)
        assert policy.can_start
        assert start(policy).queries == [queries[2]]

    def test_an_instance_can_be_given_the_next_query_while_it_runs_one(self) -> None:
        policy = simple([0, 0, 1], depth=2)
        queries = [ArloQuery(10, float(t)) for t in range(4)]
        for query in queries:
            policy.submit(query)
        first, second = start(policy), start(policy)
        assert [first.queries, second.queries] == [[queries[0]], [queries[1]]]
        assert not policy.can_start
        assert policy.outstanding == [0, 0, 4]
        policy.finished(first)
        assert start(policy).queries == [queries[2]]
        assert policy.next_batch(0.0) is None

    def test_an_idle_instance_does_not_run_the_queue_of_another(self) -> None:
        policy = simple([1, 0, 1])
        for _ in range(5):
            policy.submit(ArloQuery(10, 0.0))
        assert start(policy).runtime == 0
        assert policy.next_batch(0.0) is None

    def test_queries_spread_over_the_instances_of_a_level(self) -> None:
        policy = simple([2, 0, 1])
        for _ in range(4):
            policy.submit(ArloQuery(10, 0.0))
        lanes = {start(policy).lane, start(policy).lane}
        assert len(lanes) == 2
        assert policy.next_batch(0.0) is None
        assert policy.outstanding == [4, 0, 0]

    def test_a_query_longer_than_every_runtime_is_refused(self) -> None:
        policy = simple([1, 1, 1])
        with pytest.raises(InvalidArgument, match="129 tokens; the longest runtime accepts 128"):
            policy.submit(ArloQuery(129, 0.0))
        assert len(policy) == 0

    def test_clear_drops_waiting_queries_and_keeps_running_ones(self) -> None:
        policy = simple([1, 0, 1])
        for length in (10, 10, 100):
            policy.submit(ArloQuery(length, 0.0, 9.0))
        batch = start(policy)
        policy.clear()
        assert (len(policy), policy.can_start, policy.expired(100.0)) == (0, False, [])
        assert policy.outstanding == [1, 0, 0]
        policy.finished(batch)
        assert policy.outstanding == [0, 0, 0]


class TestDeadlines:
    def test_a_query_that_would_miss_its_deadline_is_expired_once(self) -> None:
        policy = simple([1, 0, 1])
        tight, fine = ArloQuery(100, 0.0, deadline=0.039), ArloQuery(10, 0.0, deadline=0.039)
        policy.submit(tight)
        policy.submit(fine)
        assert policy.expired(0.0) == [tight]
        assert policy.expired(0.0) == []
        assert policy.outstanding == [1, 0, 0]
        assert start(policy).queries == [fine]
        assert policy.next_batch(0.0) is None

    def test_a_faster_instance_after_a_new_allocation_meets_the_deadline(self) -> None:
        policy = simple([0, 1, 1])
        busy, query = ArloQuery(60, 0.0), ArloQuery(10, 0.0, deadline=0.05)
        policy.submit(busy)
        start(policy)
        policy.submit(query)  # may wait for the second runtime until 0.03
        policy.allocate([1, 0, 1])
        assert policy.expired(0.035) == []
        assert start(policy).queries == [query]

    def test_deadlines_of_finished_queries_are_removed(self) -> None:
        policy = simple([1, 0, 1])
        for i in range(2000):
            policy.submit(ArloQuery(10, i * 1e-3, deadline=1e6))
            policy.finished(start(policy))
        assert len(policy._deadlines) < 200


class TestAllocation:
    @pytest.mark.parametrize("instances", [[1, 1], [1, 1, 1, 1], [1, 1, 0], [-1, 1, 1]])
    def test_invalid_allocations_are_refused(self, instances: list[int]) -> None:
        with pytest.raises(InvalidArgument, match="at least 1 for the longest"):
            simple(instances)
        policy = simple([1, 1, 1])
        with pytest.raises(InvalidArgument, match="at least 1 for the longest"):
            policy.allocate(instances)
        assert policy.instances == [1, 1, 1]

    def test_a_removed_instance_finishes_its_query_and_the_rest_is_dispatched_again(self) -> None:
        policy = simple([1, 1, 1])
        queries = [ArloQuery(10, float(t)) for t in range(4)]
        for query in queries:
            policy.submit(query)
        running = start(policy)
        policy.allocate([0, 1, 1])
        assert policy.instances == [1, 1, 1]
        assert policy.max_concurrency == 3
        assert policy.outstanding == [1, 3, 0]
        policy.submit(ArloQuery(10, 9.0))
        assert policy.outstanding == [1, 4, 0]
        policy.finished(running)
        assert policy.instances == [0, 1, 1]
        order = []
        while (batch := policy.next_batch(0.0)) is not None:
            assert batch.runtime == 1
            order.append(batch.queries[0])
            policy.finished(batch)
        assert order[:3] == queries[1:]

    def test_the_least_loaded_instance_is_removed_at_once_if_idle(self) -> None:
        policy = simple([2, 0, 1])
        policy.submit(ArloQuery(10, 0.0))
        busy = start(policy)
        policy.allocate([1, 0, 1])
        assert policy.instances == [1, 0, 1]
        policy.finished(busy)
        policy.submit(ArloQuery(10, 0.0))
        assert start(policy).lane == busy.lane

    def test_an_instance_that_is_added_again_while_draining_stays(self) -> None:
        policy = simple([1, 0, 1])
        policy.submit(ArloQuery(10, 0.0))
        running = start(policy)
        policy.allocate([0, 0, 1])
        policy.allocate([1, 0, 1])
        assert policy.instances == [1, 0, 1]
        policy.submit(ArloQuery(10, 0.0))
        assert policy.next_batch(0.0) is None
        policy.finished(running)
        assert start(policy).lane == running.lane

    def test_new_instances_are_used_and_have_new_lanes(self) -> None:
        policy = simple([0, 0, 1])
        lanes = set()
        for instances in ([1, 0, 1], [0, 0, 1], [1, 0, 1]):
            policy.allocate(instances)
            policy.submit(ArloQuery(10, 0.0))
            batch = start(policy)
            lanes.add(batch.lane)
            assert batch.runtime == (0 if instances[0] else 2)
            policy.finished(batch)
        assert len(lanes) == 3


class TestRequeue:
    def test_another_instance_runs_it_first(self) -> None:
        policy = simple([2, 0, 1])
        queries = [ArloQuery(10, float(t)) for t in range(4)]
        for query in queries:
            policy.submit(query)
        failed, other = start(policy), start(policy)
        policy.requeue(failed)
        assert policy.outstanding == [4, 0, 0]
        assert policy.next_batch(0.0) is None
        policy.finished(other)
        assert start(policy).queries == failed.queries
        assert policy.next_batch(0.0) is None

    def test_it_is_demoted_when_its_only_instance_failed(self) -> None:
        policy = simple([1, 0, 1])
        policy.submit(ArloQuery(10, 0.0))
        failed = start(policy)
        policy.requeue(failed)
        assert policy.outstanding == [0, 0, 1]
        policy.submit(ArloQuery(10, 0.0))
        assert policy.outstanding == [0, 0, 2]
        policy.finished(failed)
        policy.submit(ArloQuery(10, 0.0))
        assert policy.outstanding == [1, 0, 2]

    def test_it_waits_for_the_only_instance_that_fits(self) -> None:
        policy = simple([1, 0, 1])
        policy.submit(ArloQuery(100, 0.0))
        failed = start(policy)
        policy.requeue(failed)
        assert not policy.can_start
        assert len(policy) == 1
        policy.finished(failed)
        assert start(policy).queries == failed.queries

    def test_an_instance_removed_meanwhile_ends_when_finished(self) -> None:
        policy = simple([1, 0, 1])
        policy.submit(ArloQuery(10, 0.0))
        failed = start(policy)
        policy.requeue(failed)
        policy.allocate([0, 0, 1])
        assert policy.instances == [1, 0, 1]
        policy.finished(failed)
        assert policy.instances == [0, 0, 1]


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 128), st.one_of(st.none(), st.floats(0.0, 0.5))),
        st.tuples(st.just("next"), st.just(0), st.none()),
        st.tuples(st.just("expire"), st.just(0), st.none()),
        st.tuples(st.sampled_from(("finish", "requeue")), st.integers(0, 5), st.none()),
        st.tuples(st.just("allocate"), st.integers(0, 26), st.none()),
    ),
    max_size=120,
)


@given(events=_EVENTS, depth=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_no_query_is_lost_duplicated_or_dispatched_to_a_shorter_runtime(
    events: list[tuple[str, int, float | None]], depth: int
) -> None:
    policy = simple([1, 1, 1], depth=depth)
    submitted: list[ArloQuery] = []
    left: list[ArloQuery] = []
    running: list[ArloBatch] = []  # `held`: batches whose queries were requeued
    held: list[ArloBatch] = []
    now, wanted = 0.0, [1, 1, 1]

    def go() -> None:
        could = policy.can_start
        batch = policy.next_batch(now)
        assert could == (batch is not None)
        if batch is None:
            return
        assert len(batch.queries) == 1
        assert batch.queries[0].length <= (32, 64, 128)[batch.runtime]
        assert sum(other.lane == batch.lane for other in running) < depth
        assert batch.lane not in {other.lane for other in held}
        running.append(batch)
        left.extend(batch.queries)

    def check() -> None:
        assert len(policy) == len(submitted) - len(left)
        assert sum(policy.outstanding) == len(policy) + len(running)
        assert policy.max_concurrency == depth * sum(policy.instances)
        assert all(have >= want for have, want in zip(policy.instances, wanted, strict=True))
        extra = sum(policy.instances) - sum(wanted)
        assert extra <= len(running) + len(held)
        for level in policy._levels:
            for instance in level:
                assert instance.waiting == len(instance.queue)
                assert instance.running == sum(b.lane == instance.lane for b in running)
            if len(level):
                assert level.head().load == min(each.load for each in level)

    for kind, number, relative in events:
        now += 0.01
        if kind == "submit":
            query = ArloQuery(number, now, None if relative is None else now + relative)
            submitted.append(query)
            before = sum(policy.outstanding)
            policy.submit(query)
            assert sum(policy.outstanding) == before + 1
        elif kind == "next":
            go()
        elif kind == "expire":
            late = policy.expired(now)
            assert all(q.deadline is not None and q.deadline - 0.04 < now for q in late)
            left.extend(late)
        elif kind == "allocate":
            wanted = [number % 3, number // 3 % 3, number // 9 + 1]
            policy.allocate(wanted)
        elif kind == "requeue" and running:
            batch = running.pop(number % len(running))
            policy.requeue(batch)
            held.append(batch)
            left.remove(batch.queries[0])
        elif kind == "finish" and (both := running + held):
            batch = both[number % len(both)]
            (running if batch in running else held).remove(batch)
            policy.finished(batch)
        check()
    while len(policy):
        for batch in (*running, *held):
            policy.finished(batch)
        running.clear()
        held.clear()
        go()
        assert running
    for batch in (*running, *held):
        policy.finished(batch)
    assert policy.instances == wanted
    assert {id(q) for q in left} == {id(q) for q in submitted}
    assert len(left) == len(submitted)


def test_queries_fit_their_runtime_when_all_are_full() -> None:
    policy = simple([1, 1, 1])
    for length in (10, 50, 100) * 200:
        assert (32, 64, 128)[take(policy, length)] >= length
