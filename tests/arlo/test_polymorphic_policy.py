"""The polymorphic policy against hand-made cases, brute force and invariants."""

from __future__ import annotations

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
