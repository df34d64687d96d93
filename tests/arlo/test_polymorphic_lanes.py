"""Which lanes the polymorphic policy selects: one engine with all threads, or several with one thread each."""

from __future__ import annotations

import heapq

import pytest

from tidal.arlo.policies import ArloBatch, ArloQuery, PolymorphicPolicy
from tidal.profiles import LatencyProfile


def lanes_profile(single_ms: float, *, threads: int, concurrency: int) -> LatencyProfile:
    """Return a profile on which a query of any length takes `single_ms` and a batch gains nothing."""
    grid = (tuple(single_ms * b for b in (1, 2, 4)),)
    return LatencyProfile(
        lengths=(128,), batches=(1, 2, 4), median_ms=grid, p95_ms=grid, threads=threads, concurrency=concurrency
    )


def wide_and_narrow(wide_ms: float, narrow_ms: float) -> PolymorphicPolicy:
    return PolymorphicPolicy(
        (128,),
        lanes_profile(wide_ms, threads=2, concurrency=1),
        lanes_profile(narrow_ms, threads=1, concurrency=2),
        static_upto=0,
        max_batch=4,
    )


class TestLanes:
    """One engine with all threads (lane 0) or two with one each (lanes 1 and 2)."""

    def test_a_single_query_runs_on_all_threads(self) -> None:
        policy = wide_and_narrow(wide_ms=10, narrow_ms=15)
        policy.submit(ArloQuery(20, 0.0))
        batch = policy.next_batch(0.0)
        assert batch is not None
        assert batch.lane == 0

    def test_a_deadline_that_only_all_threads_meet_uses_them(self) -> None:
        for deadline, lane in ((0.013, 0), (0.1, 1)):
            policy = wide_and_narrow(wide_ms=10, narrow_ms=14)
            policy.submit(ArloQuery(20, 0.0, deadline))
            policy.submit(ArloQuery(20, 0.0, deadline))
            batch = policy.next_batch(0.0)
            assert batch is not None
            assert batch.lane == lane

    def test_a_pair_runs_concurrently_when_both_finish_sooner(self) -> None:
        # Sum of latencies in sequence: 10 + 20 ms; concurrently: 2 × 14 or 2 × 16 ms.
        for narrow_ms, lanes in ((14, [1, 2]), (16, [0])):
            policy = wide_and_narrow(wide_ms=10, narrow_ms=narrow_ms)
            for _ in range(2):
                policy.submit(ArloQuery(20, 0.0))
            started = [policy.next_batch(0.0), policy.next_batch(0.0)]
            assert [batch.lane for batch in started if batch is not None] == lanes

    def test_wide_and_narrow_lanes_never_run_at_once(self) -> None:
        policy = wide_and_narrow(wide_ms=10, narrow_ms=14)
        policy.submit(ArloQuery(20, 0.0))
        wide = policy.next_batch(0.0)
        assert wide is not None
        assert wide.alone
        policy.submit(ArloQuery(20, 0.001))
        policy.submit(ArloQuery(20, 0.001))
        assert policy.next_batch(0.001) is None
        policy.finished(wide)
        first = policy.next_batch(0.01)
        assert first is not None
        assert first.lane == 1
        policy.submit(ArloQuery(20, 0.011))
        second = policy.next_batch(0.011)
        assert second is not None
        assert second.lane == 2
        assert not first.alone
        assert not second.alone
        assert policy.next_batch(0.011) is None

    def test_a_batch_with_queries_behind_it_is_not_alone(self) -> None:
        policy = wide_and_narrow(wide_ms=10, narrow_ms=100)
        for _ in range(9):
            policy.submit(ArloQuery(20, 0.0))
        alone = []
        while (batch := policy.next_batch(0.0)) is not None:
            alone.append(batch.alone)
            assert batch.alone == (not len(policy))
            policy.finished(batch)
        assert alone[-1]
        assert not alone[0]

    def test_lanes_slower_than_their_profile_are_avoided_and_tried_again(self) -> None:
        """By the profile a query takes 10 ms on all threads and 14 on one; on a busy machine, 20 and 14."""
        policy = wide_and_narrow(wide_ms=10, narrow_ms=14)

        def lone(wide_takes: float) -> int:
            policy.submit(ArloQuery(20, 0.0))
            batch = policy.next_batch(0.0)
            assert batch is not None
            policy.finished(batch, wide_takes if batch.lane == 0 else 0.014)
            return batch.lane

        assert [lone(0.010) for _ in range(50)] == [0] * 50
        disturbed = [lone(0.020) for _ in range(50)]
        assert disturbed[0] == 0
        assert disturbed[-10:] == [1] * 10
        calm = [lone(0.010) for _ in range(1000)]
        assert calm[0] == 1
        assert calm[-200:].count(1) <= 4  # trials

    @pytest.mark.parametrize(("wide_takes", "narrow_takes", "better"), [(10, 14, {1, 2}), (10, 30, {0})])
    @pytest.mark.parametrize(("wide_ms", "narrow_ms"), [(10, 14), (10, 60), (30, 14)])
    def test_a_long_queue_runs_in_the_better_mode_whatever_the_profile_says(
        self, wide_ms: float, narrow_ms: float, wide_takes: float, narrow_takes: float, better: set[int]
    ) -> None:
        """The machine is never idle: 100 queries are waiting whenever a batch ends."""
        policy = wide_and_narrow(wide_ms, narrow_ms)
        for _ in range(100):
            policy.submit(ArloQuery(20, 0.0))
        running: list[tuple[float, int, ArloBatch]] = []
        now, lanes = 0.0, list[int]()
        for _ in range(3000):
            while (batch := policy.next_batch(now)) is not None:
                assert not running or (batch.lane > 0 and 0 not in {each[2].lane for each in running})
                took = (wide_takes if batch.lane == 0 else narrow_takes) * len(batch.queries) / 1e3
                heapq.heappush(running, (now + took, len(lanes), batch))
                lanes.append(batch.lane)
                for _ in batch.queries:
                    policy.submit(ArloQuery(20, now))
            now, _, batch = heapq.heappop(running)
            took = (wide_takes if batch.lane == 0 else narrow_takes) * len(batch.queries) / 1e3
            policy.finished(batch, took)
        last = lanes[-500:]
        assert sum(lane in better for lane in last) >= 0.95 * len(last)

    def test_a_failed_batch_does_not_count_for_its_lanes(self) -> None:
        policy = wide_and_narrow(wide_ms=10, narrow_ms=14)
        for _ in range(100):
            policy.submit(ArloQuery(20, 0.0))
            batch = policy.next_batch(0.0)
            assert batch is not None
            assert batch.lane == 0
            policy.finished(batch)

    def test_a_lone_client_after_a_peak_soon_has_all_threads(self) -> None:
        policy = wide_and_narrow(10, 16)
        for _ in range(500):
            policy.submit(ArloQuery(10, 0))
        while (batch := policy.next_batch(0)) is not None:
            policy.finished(batch)
        lanes = []
        for number in range(20):
            policy.submit(ArloQuery(10, number))
            batch = policy.next_batch(number)
            assert batch is not None
            lanes.append(batch.lane)
            policy.finished(batch)
        assert lanes[0] > 0
        assert lanes[-1] == 0

    def test_two_alternating_clients_use_narrow_lanes_and_one_client_the_wide_one(self) -> None:
        """Each client sends its next query after its answer, so both never wait at an idle machine."""
        policy = wide_and_narrow(wide_ms=10, narrow_ms=14)
        lanes = []
        policy.submit(ArloQuery(20, 0.0))
        running = [policy.next_batch(0.0)]
        policy.submit(ArloQuery(20, 0.0))
        for turn in range(60):
            batch = policy.next_batch(turn * 0.01)
            if batch is not None:
                running.append(batch)
            done = running.pop(0)
            assert done is not None
            lanes.append(done.lane)
            policy.finished(done)
            started = policy.next_batch(turn * 0.01)
            if started is not None:
                running.append(started)
            policy.submit(ArloQuery(20, turn * 0.01))  # the answered client sends its next query
        assert lanes[0] == 0
        assert set(lanes[-20:]) == {1, 2}
        policy.clear()
        for done in running:
            if done is not None:
                policy.finished(done)
        lone = []
        for turn in range(60):
            policy.submit(ArloQuery(20, 1.0 + turn))
            batch = policy.next_batch(1.0 + turn)
            assert batch is not None
            lone.append(batch.lane)
            policy.finished(batch)
        assert lone[-1] == 0
