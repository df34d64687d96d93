"""Which queries policies start and evict, and when; invariants of every policy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.otas.policies.profiles import LINEAR, STARTED, query
from tidal.errors import InvalidArgument, NotFound
from tidal.otas.policies import Batch, FixedPolicy, OtasPolicy, PaperPolicy, ParetoPolicy, Query
from tidal.otas.policies.base import GroupedPolicy
from tidal.otas.policies.groups import Batching
from tidal.otas.policies.paper import PaperSettings

Make = Callable[..., GroupedPolicy]
MAKES: dict[str, Make] = {
    "paper": PaperPolicy,
    "pareto": ParetoPolicy,
    "fixed": lambda profile, **options: FixedPolicy(profile, 0, **options),
}


def filled(make: Make, *queries: Query, profile: object = LINEAR, **options: object) -> GroupedPolicy:
    policy = make(profile, **options)
    for each in queries:
        policy.add(each, each.arrival)
    return policy


def start(policy: OtasPolicy, now: float) -> Batch:
    batch = policy.next(now).batch
    assert batch is not None
    return batch


@pytest.fixture(params=MAKES.values(), ids=list(MAKES))
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


class TestEveryPolicy:
    def test_an_idle_engine_gets_a_waiting_query_at_once(self, make: Make) -> None:
        only = query(0.0, 1.0)
        policy = filled(make, only)
        decision = policy.next(0.0)
        assert decision.batch is not None
        assert (list(decision.batch.queries), list(decision.evicted)) == ([only], [])
        assert decision.batch.seconds == pytest.approx(LINEAR.latency_s(decision.batch.gamma, 1))

    def test_one_batch_runs_at_a_time(self, make: Make) -> None:
        policy = filled(make, query(0.0, 1.0))
        batch = start(policy, 0.0)
        policy.add(query(0.001, 1.0), 0.001)
        assert (policy.can_start, len(policy), policy.next(0.001).batch) == (False, 1, None)
        policy.finished(batch, 0.004)
        assert policy.can_start
        assert len(start(policy, 0.004).queries) == 1

    def test_a_failed_batch_frees_the_engine(self, make: Make) -> None:
        policy = filled(make, query(0.0, 1.0))
        policy.finished(start(policy, 0.0), None)
        policy.add(query(0.1, 1.0), 0.1)
        assert policy.can_start

    def test_a_hopeless_query_is_evicted_even_while_the_engine_runs(self, make: Make) -> None:
        policy = filled(make, query(0.0, 1.0))
        start(policy, 0.0)
        urgent = query(0.01, 0.05)
        policy.add(urgent, 0.01)
        assert list(policy.next(0.0585).evicted) == []
        assert list(policy.next(0.0595).evicted) == [urgent]  # 1 ms at the fastest
        assert len(policy) == 0

    def test_a_removed_query_does_not_run(self, make: Make) -> None:
        gone, stays = query(0.0, 1.0), query(0.0, 1.0)
        policy = filled(make, gone, stays)
        assert (policy.remove(gone), policy.remove(gone), len(policy)) == (True, False, 1)
        assert list(start(policy, 0.0).queries) == [stays]
        assert not policy.remove(stays)

    def test_clear_removes_all_queries(self, make: Make) -> None:
        queries = [query(0.0, 1.0), query(0.0, 9.0, 50.0)]
        policy = filled(make, *queries)
        assert policy.clear() == queries
        assert (len(policy), policy.can_start, policy.next(0.0).batch) == (0, False, None)
        policy.add(queries[0], 0.1)
        assert list(start(policy, 0.1).queries) == queries[:1]

    @pytest.mark.parametrize(
        ("wrong", "error", "text"),
        [
            (query(0.0, math.inf), InvalidArgument, "deadline must be finite, got inf"),
            (query(0.0, 1.0, -1.0), InvalidArgument, "utility must be a finite number of at least 0, got -1.0"),
            (query(0.0, 1.0, math.nan), InvalidArgument, "utility must be a finite number of at least 0, got nan"),
            (query(0.0, 1.0, task="none"), NotFound, "no task none"),
        ],
    )
    def test_invalid_queries_are_refused(self, make: Make, wrong: Query, error: type[Exception], text: str) -> None:
        policy = make(LINEAR)
        with pytest.raises(error, match=text):
            policy.add(wrong, 0.0)
        assert len(policy) == 0

    def test_a_batch_stays_within_the_memory_limit(self, make: Make) -> None:
        policy = filled(make, *(query(0.0, 9.0) for _ in range(64)), memory_bytes=1000)
        while policy.can_start:
            batch = start(policy, 0.0)
            assert LINEAR.memory_bytes(batch.gamma, len(batch.queries)) <= 1000
            policy.finished(batch, batch.seconds)

    def test_a_memory_limit_below_one_query_is_refused(self, make: Make) -> None:
        with pytest.raises(InvalidArgument, match="103 bytes of memory do not allow one query at γ 4, which takes 104"):
            make(LINEAR, memory_bytes=103)


class TestFixed:
    def test_its_gamma_is_fixed(self) -> None:
        assert start(filled(lambda profile: FixedPolicy(profile, 4), query(0.0, 1.0)), 0.0).gamma == 4
        with pytest.raises(InvalidArgument, match="gamma is 3; accepted are -10, 0, 4"):
            FixedPolicy(LINEAR, 3)

    def test_the_earliest_deadline_runs_first(self) -> None:
        late, early = query(0.0, 2.0), query(0.1, 1.0)
        assert list(start(filled(MAKES["fixed"], late, early), 0.1).queries) == [early]

    def test_queries_that_would_be_late_in_their_batch_are_evicted(self) -> None:
        queries = [query(0.0, 0.1 + 0.001 * i) for i in range(60)]  # all take 120 ms; the last has 159 ms
        decision = filled(MAKES["fixed"], *queries).next(0.0)
        assert decision.batch is not None
        kept = list(decision.batch.queries)
        assert kept == queries[-len(kept) :]
        assert list(decision.evicted) == queries[: -len(kept)]
        assert decision.batch.seconds <= kept[0].deadline < (len(kept) + 1) * 0.002


class TestPaper:
    def test_at_first_the_arrival_rate_decides(self) -> None:
        assert start(filled(PaperPolicy, query(0.0, 1.0, 0.5)), 0.1).gamma == 4
        crowd = [query(0.002 * i, 1.0, 0.5) for i in range(50)]  # 500 a second
        assert start(filled(PaperPolicy, *crowd), 0.1).gamma == -10

    def test_a_critical_batch_gets_the_most(self) -> None:
        crowd = [query(0.005 * i, 1.0, 0.9) for i in range(20)]
        assert start(filled(PaperPolicy, *crowd), 0.1).gamma == 4

    @pytest.mark.parametrize(("batches", "gamma"), [(5, 4), (6, -10)])
    def test_with_more_batches_the_dynamic_programme_decides(self, batches: int, gamma: int) -> None:
        settings = PaperSettings(batching=Batching(size=1))
        policy = filled(PaperPolicy, query(0.0, 1.0), settings=settings)
        policy.finished(start(policy, 0.0), 0.004)
        policy.add(query(2.5, 0.00405, 0.5), 2.5)
        policy.add(query(2.5, 0.00505, 50.0), 2.5)
        for _ in range(batches - 2):
            policy.add(query(2.5, 1.0, 0.0), 2.5)
        # The rate suggests the largest γ, which takes 4 ms; then the second, of high utility, would be late.
        assert start(policy, 2.5).gamma == gamma

    def test_seconds_are_per_query_of_a_full_batch(self) -> None:
        batch = start(filled(PaperPolicy, query(0.0, 1.0, 0.5), profile=STARTED), 0.1)
        assert batch.seconds == pytest.approx(0.004 + 0.008 / 64)

    def test_a_late_query_does_not_delay_its_batch(self) -> None:
        urgent, others = query(0.0, 0.010), [query(0.0, 0.3) for _ in range(30)]
        policy = filled(PaperPolicy, urgent, *others)
        decision = policy.next(0.005)  # all take 31 ms at the smallest γ
        assert decision.batch is not None
        assert (list(decision.batch.queries), list(decision.evicted)) == (others, [urgent])


class TestPareto:
    def test_with_enough_time_the_largest_gamma_is_chosen(self) -> None:
        batch = start(filled(ParetoPolicy, query(0.0, 1.0), query(0.0, 1.0, task="hard")), 0.0)
        assert (len(batch.queries), batch.gamma) == (2, 4)

    def test_a_high_load_lowers_gamma(self) -> None:
        crowd = [query(0.001 * i, 0.5) for i in range(700)]
        policy = ParetoPolicy(LINEAR)
        for each in crowd[:300]:
            policy.add(each, each.arrival)
        assert start(policy, 0.3).gamma == -10

    def test_queries_of_higher_utility_run_first_under_overload(self) -> None:
        low, high = [query(0.0, 0.1, 0.01) for _ in range(60)], [query(0.0, 0.1, 1.0) for _ in range(60)]
        policy = filled(ParetoPolicy, *low, *high)
        assert set(start(policy, 0.0).queries) <= set(high)

    def test_small_groups_share_a_batch(self) -> None:
        queries = [query(0.0, 0.6, 1.0), query(0.0, 0.6, 0.1), query(0.0, 1.0, 0.1), query(0.0, 1.0, 0.01)]
        assert len(start(filled(ParetoPolicy, *queries, profile=STARTED), 0.0).queries) == 4

    def test_urgent_queries_are_planned_separately(self) -> None:
        # 40 similar queries take at least 48 ms together, too long for the first two, which take 10 ms alone.
        urgent, others = [query(-0.3, 0.325) for _ in range(2)], [query(-0.265, 0.325) for _ in range(38)]
        policy = filled(ParetoPolicy, *urgent, *others, profile=STARTED)
        assert policy.batches == 1
        batch = start(policy, 0.0)
        assert set(batch.queries) == set(urgent)
        policy.finished(batch, batch.seconds)
        assert set(start(policy, batch.seconds).queries) == set(others)

    def test_a_query_below_the_price_runs_on_an_idle_engine(self) -> None:
        policy = ParetoPolicy(LINEAR)
        for i in range(900):
            policy.add(query(0.001 * i, 0.5, 100.0), 0.001 * i)
        policy.clear()
        policy.add(query(0.9, 1.0, 0.01), 0.9)
        assert len(start(policy, 0.9).queries) == 1

    def test_predictions_adapt_to_measured_latencies(self) -> None:
        policy, now = ParetoPolicy(LINEAR), 0.0
        for _ in range(120):
            policy.add(query(now, 1.0), now)
            batch = start(policy, now)
            took = 3 * LINEAR.latency_s(batch.gamma, 1)
            policy.finished(batch, took)
            now += 1.0
        policy.add(query(now, 1.0), now)
        batch = start(policy, now)
        assert batch.seconds == pytest.approx(3 * LINEAR.latency_s(batch.gamma, 1), rel=0.05)

    def test_without_new_arrivals_old_queries_get_the_largest_gamma(self) -> None:
        assert start(filled(ParetoPolicy, query(0.0, 9.0)), 5.0).gamma == 4

    def test_utility_may_be_0(self) -> None:
        assert len(start(filled(ParetoPolicy, query(0.0, 1.0, 0.0)), 0.0).queries) == 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(1, 12),
            st.tuples(st.floats(0.001, 1.2), st.sampled_from([0.0, 0.01, 0.3, 1.0]), st.sampled_from(["easy", "hard"])),
        ),
        st.tuples(st.sampled_from(["next", "finish", "remove", "wait"]), st.integers(0, 40), st.none()),
    ),
    max_size=60,
)


@given(EVENTS, st.sampled_from(sorted(MAKES)), st.sampled_from([LINEAR, STARTED]))
@settings(max_examples=150, deadline=None)
def test_no_query_is_lost_run_twice_or_planned_to_be_late(
    events: list[tuple[str, int, tuple[float, float, str] | None]], name: str, profile: object
) -> None:
    policy = MAKES[name](profile)
    waiting: set[Query] = set()
    running: Batch | None = None
    now = 0.0

    def decide() -> None:
        nonlocal running
        could = policy.can_start
        decision = policy.next(now)
        assert set(decision.evicted) <= waiting
        assert len(set(decision.evicted)) == len(decision.evicted)
        waiting.difference_update(decision.evicted)
        if decision.batch is None:
            assert not could or not waiting  # waiting queries start if they can
            return
        assert running is None
        running = decision.batch
        queries = list(running.queries)
        assert queries
        assert len(set(queries)) == len(queries)
        assert set(queries) <= waiting
        assert [each.deadline for each in queries] == sorted(each.deadline for each in queries)
        assert now + running.seconds <= queries[0].deadline
        waiting.difference_update(queries)

    for event, number, made in events:
        if event == "add":
            assert made is not None
            for _ in range(number):
                each = query(now, *made)
                waiting.add(each)
                policy.add(each, now)
        elif event == "next":
            decide()
        elif event == "finish" and running is not None:
            now += running.seconds * number / 20
            policy.finished(running, running.seconds * number / 20 if number else None)
            running = None
        elif event == "remove" and waiting:
            each = min(waiting, key=lambda query: (query.deadline, query.utility))
            assert policy.remove(each)
            waiting.remove(each)
        elif event == "wait":
            now += number / 100
        assert len(policy) == len(waiting)
    while waiting or running is not None:
        if running is not None:
            now += running.seconds
            policy.finished(running, running.seconds)
            running = None
        decide()
    assert (len(policy), policy.can_start) == (0, False)


@pytest.mark.parametrize("urgent_share", [0.5, 0.9])
@pytest.mark.parametrize("load", [0.7, 0.95])
def test_queries_with_late_deadlines_do_not_starve(make: Make, load: float, urgent_share: float) -> None:
    """All images take the same time and have the same utility; deadlines differ. The load is relative to γ = 0."""
    draw, profile = np.random.default_rng(0), STARTED
    rate = load * profile.max_batch / profile.latency_s(0, profile.max_batch)
    coming = [
        query(float(at), 0.25 if draw.random() < urgent_share else 4.0)
        for at in draw.exponential(1 / rate, 3000).cumsum()
    ][::-1]
    policy, now = make(profile), 0.0
    answered: set[Query] = set()
    relaxed = {each for each in coming if each.deadline - each.arrival > 1}
    while coming or len(policy):
        while coming and coming[-1].arrival <= now:
            policy.add(coming[-1], coming.pop().arrival)
        decision = policy.next(now)
        if decision.batch is None:
            now = coming[-1].arrival if coming else now
            continue
        now += decision.batch.seconds
        answered.update(each for each in decision.batch.queries if now <= each.deadline)
        policy.finished(decision.batch, decision.batch.seconds)
    assert len(relaxed & answered) >= 0.99 * len(relaxed)
