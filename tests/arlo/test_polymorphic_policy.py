"""The polymorphic policy against hand-made cases, brute force and invariants."""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.arlo.policies import ArloBatch, ArloQuery, PolymorphicPolicy
from tidal.profiles import LatencyProfile


def make_profile(per_token_ms: float = 0.1, fixed_ms: float = 1.0, gain: float = 1.0) -> LatencyProfile:
    """Return a profile with latency = fixed + per_token × length × batch^gain."""
    lengths, batches = (8, 16, 32, 64, 128), (1, 2, 4, 8, 16)
    grid = tuple(tuple(fixed_ms + per_token_ms * n * b**gain for b in batches) for n in lengths)
    return LatencyProfile(lengths=lengths, batches=batches, median_ms=grid, p95_ms=grid, threads=1)


def make_policy(profile: LatencyProfile, *, static_upto: int = 0, service_weight: float = 10.0) -> PolymorphicPolicy:
    return PolymorphicPolicy(
        (32, 64, 128), profile, static_upto=static_upto, max_batch=16, service_weight=service_weight
    )


# A profile on which batching gains nothing: every batch is one query.
NO_GAIN = make_profile(fixed_ms=1e-6)


def drain(policy: PolymorphicPolicy, now: float = 0.0) -> list[list[ArloQuery]]:
    batches = []
    while (batch := policy.next_batch(now)) is not None:
        batches.append(list(batch.queries))
        policy.finished(batch)
    return batches


@pytest.mark.parametrize(("overhead_s", "sizes"), [(0.0, [1, 1, 1, 1]), (0.005, [4])])
def test_time_besides_the_engine_makes_batches_larger(overhead_s: float, sizes: list[int]) -> None:
    policy = PolymorphicPolicy((32, 64, 128), NO_GAIN, static_upto=0, max_batch=16, overhead_s=overhead_s)
    for _ in range(4):
        policy.submit(ArloQuery(8, 0.0))
    batch = policy.next_batch(0.0)
    assert batch is not None
    assert batch.seconds == pytest.approx(overhead_s + 0.0008 * len(batch.queries), rel=1e-3)
    policy.finished(batch)
    assert [len(batch.queries), *map(len, drain(policy))] == sizes


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from([5, 8, 30, 100]), min_size=1, max_size=24), min_size=2, max_size=6),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_batches_do_not_depend_on_earlier_queues(queues: list[list[int]], gain: float) -> None:
    profile = make_profile(gain=gain)
    used = make_policy(profile)
    for lengths in (*queues, *queues):
        fresh = make_policy(profile)
        queries = [ArloQuery(length, 0.0) for length in lengths]
        for query in queries:
            used.submit(query)
            fresh.submit(query)
        assert drain(used) == drain(fresh)


class TestOrder:
    def test_zero_weight_is_first_come_first_served(self) -> None:
        policy = make_policy(NO_GAIN, service_weight=0.0)
        queries = [ArloQuery(n, t) for t, n in enumerate((128, 8, 64, 16))]
        for query in reversed(queries):
            policy.submit(query)
        assert [q for batch in drain(policy) for q in batch] == queries

    def test_a_short_query_overtakes_a_recent_long_one(self) -> None:
        # service: 128 tokens 12.8 ms, 8 tokens 0.8 ms; weight 10: the key of the long one is 120 ms later.
        policy = make_policy(NO_GAIN)
        long, short = ArloQuery(128, 0.0), ArloQuery(8, 0.119)
        policy.submit(long)
        policy.submit(short)
        assert [q for batch in drain(policy) for q in batch] == [short, long]

    def test_an_older_long_query_is_not_overtaken(self) -> None:
        policy = make_policy(NO_GAIN)
        long, short = ArloQuery(128, 0.0), ArloQuery(8, 0.121)
        policy.submit(short)
        policy.submit(long)
        assert [q for batch in drain(policy) for q in batch] == [long, short]

    def test_a_query_with_a_close_deadline_runs_first(self) -> None:
        policy = make_policy(NO_GAIN)
        short, urgent = ArloQuery(8, 0.0), ArloQuery(128, 0.0, deadline=0.0129)
        policy.submit(short)
        policy.submit(urgent)
        assert drain(policy)[0] == [urgent]


class TestBatches:
    def test_no_gain_means_no_batch(self) -> None:
        policy = make_policy(NO_GAIN)
        for _ in range(6):
            policy.submit(ArloQuery(16, 0.0))
        assert [len(b) for b in drain(policy)] == [1] * 6

    def test_a_batch_at_no_cost_takes_all(self) -> None:
        policy = make_policy(make_profile(gain=0.0))
        for _ in range(6):
            policy.submit(ArloQuery(16, 0.0))
        assert [len(b) for b in drain(policy)] == [6]

    def test_a_long_queue_batches_at_a_gain_that_a_pair_does_not(self) -> None:
        profile = make_profile(fixed_ms=0.2, gain=1.0)  # 16 tokens: 1.8 ms alone, 1.7 ms each in a pair
        pair, crowd = make_policy(profile), make_policy(profile)
        for _ in range(2):
            pair.submit(ArloQuery(16, 0.0))
        for _ in range(200):
            crowd.submit(ArloQuery(16, 0.0))
        assert [len(b) for b in drain(pair)] == [1, 1]
        assert len(next(iter(drain(crowd)))) > 1

    def test_a_deadline_bounds_the_batch(self) -> None:
        policy = make_policy(make_profile(fixed_ms=10.0, per_token_ms=0.1, gain=1.0))
        policy.submit(ArloQuery(16, 0.0, deadline=0.0135))  # alone 11.6 ms, pair 13.2 ms, four 16.4 ms
        for _ in range(7):
            policy.submit(ArloQuery(16, 0.0))
        assert len(drain(policy)[0]) == 2

    def test_shorter_queries_join_a_batch_and_longer_ones_do_not(self) -> None:
        policy = make_policy(make_profile(gain=0.0, per_token_ms=0.01))
        short, head, long = ArloQuery(8, 0.0), ArloQuery(20, 0.0, deadline=0.002), ArloQuery(100, 0.0)
        for query in (short, head, long):
            policy.submit(query)
        batches = drain(policy)
        assert batches[0] == [head, short]
        assert batches[1] == [long]

    @pytest.mark.parametrize("static_upto", [0, 32, 64, 128])
    def test_runtime_is_the_smallest_that_fits(self, static_upto: int) -> None:
        policy = make_policy(NO_GAIN, static_upto=static_upto)
        for length, runtime in ((1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (128, 2)):
            policy.submit(ArloQuery(length, 0.0))
            batch = policy.next_batch(0.0)
            assert batch is not None
            assert batch.runtime == runtime
            policy.finished(batch)

    @given(
        lengths=st.lists(st.sampled_from((9, 11, 16)), min_size=1, max_size=7),  # of one bin: each may join any other
        fixed=st.floats(0.01, 5),
        gain=st.floats(0.0, 1.0),
    )
    @settings(max_examples=60, deadline=None)
    def test_the_total_wait_is_that_of_the_best_split(self, lengths: list[int], fixed: float, gain: float) -> None:
        """Compared with every split into batches of the queries in their order."""
        profile = make_profile(fixed_ms=fixed, gain=gain)
        policy = make_policy(profile)
        for length in lengths:
            policy.submit(ArloQuery(length, 0.0))
        batches = drain(policy)
        order, count = [query.length for batch in batches for query in batch], len(lengths)

        def total(sizes: list[int]) -> float:
            elapsed, waiting, at = 0.0, 0.0, 0
            for size in sizes:
                elapsed += profile.latency_ms(max(order[at : at + size]), size)
                waiting += size * elapsed
                at += size
            return waiting

        # Every way to end a batch, or not, after each query but the last.
        ends = ([*chosen, True] for chosen in itertools.product((False, True), repeat=count - 1))
        splits = ([i + 1 for i, end in enumerate(each) if end] for each in ends)
        best = min(total([b - a for a, b in itertools.pairwise((0, *split))]) for split in splits)
        assert total([len(b) for b in batches]) <= best * (1 + 1e-9)


class TestDeadlines:
    def test_a_query_that_would_miss_its_deadline_is_expired_once(self) -> None:
        policy = make_policy(NO_GAIN)
        late, fine = ArloQuery(128, 0.0, deadline=0.0127), ArloQuery(8, 0.0, deadline=1.0)
        policy.submit(late)
        policy.submit(fine)
        assert policy.expired(0.0) == [late]
        assert policy.expired(0.0) == []
        assert drain(policy) == [[fine]]

    def test_deadlines_of_finished_queries_are_removed(self) -> None:
        policy = make_policy(NO_GAIN)
        for i in range(2000):
            policy.submit(ArloQuery(8, i * 1e-3, deadline=1e6))
            batch = policy.next_batch(i * 1e-3)
            assert batch is not None
            policy.finished(batch)
        assert len(policy._deadlines) < 200


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
        drain(policy)
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


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 128), st.one_of(st.none(), st.floats(0.0, 0.2))),
        st.tuples(st.just("next"), st.just(0), st.none()),
        st.tuples(st.just("expire"), st.just(0), st.none()),
        st.tuples(st.just("finish"), st.just(0), st.none()),
    ),
    max_size=100,
)


@given(events=_EVENTS, static_upto=st.sampled_from([0, 32, 128]), fixed=st.floats(0.0001, 5), parallel=st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_query_is_lost_duplicated_or_run_on_a_shorter_runtime(
    events: list[tuple[str, int, float | None]], static_upto: int, fixed: float, parallel: bool
) -> None:
    profile = make_profile(fixed_ms=fixed, gain=0.6)
    narrow = profile.model_copy(update={"concurrency": 2, "threads": 1})
    policy = PolymorphicPolicy(
        (32, 64, 128), profile, narrow if parallel else None, static_upto=static_upto, max_batch=16
    )
    submitted: list[ArloQuery] = []
    left: list[ArloQuery] = []
    running: list[ArloBatch] = []
    now = 0.0

    def start() -> None:
        batch = policy.next_batch(now)
        if batch is not None:
            assert 1 <= len(batch.queries) <= 16
            assert max(q.length for q in batch.queries) <= (32, 64, 128)[batch.runtime]
            lanes = {other.lane for other in running}
            assert batch.lane not in lanes
            assert batch.lane in (0, 1, 2)
            assert not running or (batch.lane > 0 and 0 not in lanes)
            running.append(batch)
            left.extend(batch.queries)

    for kind, length, relative in events:
        now += 0.01
        if kind == "submit":
            query = ArloQuery(length, now, None if relative is None else now + relative)
            submitted.append(query)
            policy.submit(query)
        elif kind == "next":
            start()
        elif kind == "expire":
            left.extend(policy.expired(now))
        elif running:
            policy.finished(running.pop(0))
        assert len(policy) == len(submitted) - len(left)
    while len(policy):
        for batch in running:
            policy.finished(batch)
        running.clear()
        start()
        assert running
    assert {id(q) for q in left} == {id(q) for q in submitted}
    assert len(left) == len(submitted)
