"""The event loop compared with queueing theory and with a plain loop over the policy; failures of instances."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.arlo.policies import ArloBatch, ArloQuery, PartitionedPolicy
from tidal.simulator.arlo.cluster import Cluster

RUNTIMES = (64, 128, 256)
SERVICE = (0.01, 0.02, 0.04)


def make_policy(instances: list[int], slo_s: float = 0.4) -> PartitionedPolicy:
    return PartitionedPolicy(RUNTIMES, SERVICE, slo_s, instances)


def by_runtime(batch: ArloBatch) -> float:
    return SERVICE[batch.runtime]


class Watched(PartitionedPolicy):
    """A policy that records every call with its time and checks that time never goes back."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls: list[tuple[str, float, int]] = []
        self.now = 0.0
        super().__init__(*arguments, **options)

    def submit(self, query: ArloQuery) -> None:
        assert query.arrival >= self.now
        self.now = query.arrival
        self.calls.append(("submit", self.now, query.length))
        super().submit(query)

    def next_batch(self, now: float) -> ArloBatch | None:
        assert now >= self.now
        self.now = now
        batch = super().next_batch(now)
        if batch is not None:
            self.calls.append(("start", now, batch.lane))
        return batch

    def finished(self, batch: ArloBatch, took: float | None = None) -> None:
        self.calls.append(("finish", self.now, batch.lane))
        super().finished(batch, took)


def poisson(rate: float, count: int, seed: int) -> list[float]:
    times: list[float] = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    return times


class TestQueueingTheory:
    """One instance and Poisson arrivals; the mean over ten long runs within four of its standard errors."""

    def mean(self, rate: float, seconds: Any) -> tuple[float, float]:
        means = []
        for seed in range(10):
            times = poisson(rate, 10_000, seed)
            cluster = Cluster(make_policy([0, 0, 1]), seconds(seed), 3)
            cluster.advance(times, [10] * len(times), times[-1] + 1e3)
            means.append(np.mean(cluster.latencies[1000:]))
        return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(len(means)))

    @pytest.mark.parametrize("busy", [0.3, 0.7])
    def test_m_d_1(self, busy: float) -> None:
        mean, error = self.mean(busy / 0.04, lambda _: by_runtime)
        assert mean == pytest.approx(0.04 + busy * 0.04 / (2 * (1 - busy)), abs=4 * error)

    @pytest.mark.parametrize("busy", [0.3, 0.7])
    def test_m_m_1(self, busy: float) -> None:
        def drawn(seed: int) -> Any:
            times = iter(np.random.default_rng(100 + seed).exponential(0.04, 10_000).tolist())
            return lambda _: next(times)

        mean, error = self.mean(busy / 0.04, drawn)
        assert mean == pytest.approx(0.04 / (1 - busy), abs=4 * error)

    def test_started_work_is_counted(self) -> None:
        cluster = Cluster(make_policy([1, 0, 1]), by_runtime, 3)
        cluster.advance([0.0, 0.0, 0.1], [10, 200, 10], 1.0)
        assert cluster.busy == pytest.approx([0.02, 0.0, 0.04])


@given(
    lengths=st.lists(st.integers(1, 256), min_size=1, max_size=150),
    instances=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)),
    gap=st.sampled_from([0.0, 0.001, 0.004, 0.02]),
    cuts=st.lists(st.floats(0.0, 3.0), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_the_policy_gets_the_calls_of_a_plain_loop(
    lengths: list[int], instances: tuple[int, int, int], gap: float, cuts: list[float]
) -> None:
    """The same calls in the same order, however `advance` divides the time."""
    times = [i * gap for i in range(len(lengths))]
    arguments = (RUNTIMES, SERVICE, 0.4, list(instances))

    by_hand = Watched(*arguments)
    events: list[tuple[float, int, int, Any]] = [
        (time, 1, i, ArloQuery(length, time)) for i, (time, length) in enumerate(zip(times, lengths, strict=True))
    ]
    heapq.heapify(events)
    order, expected = len(events), []
    while events:
        now, kind, _, what = heapq.heappop(events)
        by_hand.now = now
        if kind:
            by_hand.submit(what)
        else:
            by_hand.finished(what)
            expected += [now - query.arrival for query in what.queries]
        while (batch := by_hand.next_batch(now)) is not None:
            order += 1
            heapq.heappush(events, (now + by_runtime(batch), 0, order, batch))

    policy = Watched(*arguments)
    cluster = Cluster(policy, by_runtime, 3)
    for until in [*sorted(cuts), 1e3]:
        now = cluster.now
        chosen = [i for i, time in enumerate(times) if (now < time or now == 0.0 <= time) and time <= until]
        if now == 0.0 and until == 0.0:
            continue
        cluster.advance([times[i] for i in chosen], [lengths[i] for i in chosen], until)
        assert cluster.now == until
    without_times = [(what, number) for what, _, number in policy.calls]
    assert without_times == [(what, number) for what, _, number in by_hand.calls]
    assert cluster.latencies == pytest.approx(expected)


class TestFailures:
    def test_another_instance_runs_its_query_and_it_gets_none_until_repaired(self) -> None:
        policy = Watched(RUNTIMES, SERVICE, 0.4, [2, 0, 1])
        cluster = Cluster(policy, by_runtime, 3)
        cluster.advance([0.0], [10], 0.005)
        (lane,) = (number for what, _, number in policy.calls if what == "start")
        cluster.fail(lane, repair_s=1.0)
        times = [0.1 + i * 0.002 for i in range(100)]
        cluster.advance(times, [10] * 100, 1.004)
        during = [number for what, time, number in policy.calls if what == "start" and 0.005 <= time < 1.004]
        assert lane not in during
        assert cluster.latencies[0] == pytest.approx(0.005 + 0.01)
        cluster.advance([1.5, 1.5, 1.5], [10] * 3, 2.0)
        assert lane in [number for what, time, number in policy.calls if what == "start" and time >= 1.5]
        assert len(cluster.latencies) == 104
        assert cluster.failed_batches == 1
        assert cluster.busy[0] + cluster.busy[2] == pytest.approx(
            0.005 + sum(0.01 if policy.lanes[n] == 0 else 0.04 for w, _, n in policy.calls if w == "start") - 0.01
        )

    def test_an_idle_failed_instance_fails_its_next_query(self) -> None:
        policy = make_policy([1, 0, 1])
        cluster = Cluster(policy, by_runtime, 3)
        cluster.fail(0, repair_s=1.0)
        assert policy.lanes[0] == 0
        cluster.advance([0.1, 0.2], [10, 10], 0.9)
        assert cluster.failed_batches == 1
        assert cluster.latencies == pytest.approx([0.04, 0.04])  # on the longest runtime
        cluster.advance([1.5], [10], 2.0)
        assert cluster.latencies[2:] == pytest.approx([0.01])

    def test_an_idle_failed_instance_may_fail_a_query_just_before_its_repair(self) -> None:
        cluster = Cluster(make_policy([1, 0, 1]), by_runtime, 3)
        cluster.fail(0, repair_s=1.0)
        cluster.advance([0.9, 1.5], [10, 10], 2.0)
        assert cluster.failed_batches == 1
        assert cluster.latencies == pytest.approx([0.04, 0.01])

    def test_queries_wait_for_the_only_runtime_that_fits(self) -> None:
        cluster = Cluster(make_policy([1, 0, 1]), by_runtime, 3)
        cluster.advance([0.0, 0.0], [200, 200], 0.01)
        cluster.fail(1, repair_s=0.5)
        cluster.advance([], [], 0.5)
        assert cluster.latencies == []
        assert cluster.next_event == pytest.approx(0.51)
        cluster.advance([], [], 1.0)
        assert cluster.latencies == pytest.approx([0.55, 0.59])

    def test_a_failed_instance_does_not_fail_again(self) -> None:
        cluster = Cluster(make_policy([1, 0, 1]), by_runtime, 3)
        cluster.fail(0, 0.5)
        cluster.fail(0, 5.0)
        cluster.advance([0.6], [10], 1.0)
        assert cluster.latencies == pytest.approx([0.01])

    def test_an_instance_removed_while_failed_does_not_return(self) -> None:
        policy = make_policy([1, 0, 1])
        cluster = Cluster(policy, by_runtime, 3)
        cluster.advance([0.0], [10], 0.001)
        cluster.fail(0, 0.5)
        policy.allocate([0, 0, 1])
        cluster.advance([0.1], [10], 1.0)
        assert sorted(cluster.latencies) == pytest.approx([0.04, 0.041])
        assert policy.instances == [0, 0, 1]
