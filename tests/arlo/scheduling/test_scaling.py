"""Target tracking on the 98th percentile (§4)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.arlo.scheduling import Autoscaler, InstanceLoad, Scaling, least_busy
from tidal.errors import InvalidArgument


def feed(scaler: Autoscaler, fast: int, slow: int = 0, fast_s: float = 0.1, slow_s: float = 0.95) -> None:
    """Complete requests with these latencies against an SLO of 1 second."""
    for _ in range(fast):
        scaler.completed(fast_s)
    for _ in range(slow):
        scaler.completed(slow_s)


def run(
    scaler: Autoscaler, start: int, seconds: int, gpus: int, fast: int, slow: int = 0, slow_s: float = 0.95
) -> dict:
    """Return the decisions by second, when each second completes these requests."""
    decisions = {}
    for second in range(start, start + seconds):
        feed(scaler, fast, slow, slow_s=slow_s)
        decision = scaler.decide(second + 1, gpus)
        if decision is not None:
            decisions[second + 1] = decision
    return decisions


class TestAdding:
    def test_when_the_percentile_reaches_95_percent_of_the_slo(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 6, 4, 97, 3) == {5: Scaling.ADD}

    def test_not_when_two_in_a_hundred_do(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 6, 4, 98, 2) == {}

    def test_not_just_below_95_percent(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 6, 4, 0, 9, slow_s=0.949) == {}

    def test_again_only_after_another_window(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 12, 4, 0, 5) == {5: Scaling.ADD, 10: Scaling.ADD}

    def test_not_above_max_gpus(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=4), 0, 70, 4, 0, 5) == {}

    @given(st.lists(st.floats(0.9, 1.0), min_size=1, max_size=300))
    def test_the_percentile_is_that_of_the_sorted_latencies(self, latencies: list[float]) -> None:
        scaler = Autoscaler(1.0, min_gpus=1, max_gpus=9)
        for latency in latencies:
            scaler.completed(latency)
        rank = math.ceil(len(latencies) * 98 / 100)
        assert (scaler.decide(5.0, 1) is Scaling.ADD) == (sorted(latencies)[rank - 1] >= 0.95)


class TestReleasing:
    def test_after_every_60_seconds_of_low_load(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 125, 4, 10) == {
            60: Scaling.RELEASE,
            120: Scaling.RELEASE,
        }

    def test_not_when_the_percentile_is_half_of_the_slo(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 130, 4, 9, 1, slow_s=0.5) == {}

    def test_after_an_idle_minute(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=1, max_gpus=9), 0, 61, 4, 0) == {60: Scaling.RELEASE}

    def test_not_below_min_gpus(self) -> None:
        assert run(Autoscaler(1.0, min_gpus=4, max_gpus=9), 0, 130, 4, 10) == {}

    def test_adding_restarts_the_minute(self) -> None:
        scaler = Autoscaler(1.0, min_gpus=1, max_gpus=9)
        assert run(scaler, 0, 50, 4, 1000) == {}
        assert run(scaler, 50, 5, 4, 0, 5) == {55: Scaling.ADD}
        assert run(scaler, 55, 61, 5, 1000) == {115: Scaling.RELEASE}


class TestLeastBusy:
    def test_the_smallest_load(self) -> None:
        instances = [InstanceLoad(0, 0, 0.5), InstanceLoad(1, 1, 0.2), InstanceLoad(2, 1, 0.3)]
        assert least_busy(instances, longest=1) == instances[1]

    def test_never_the_last_longest(self) -> None:
        instances = [InstanceLoad(0, 0, 0.5), InstanceLoad(1, 1, 0.0)]
        assert least_busy(instances, longest=1) == instances[0]
        assert least_busy(instances[1:], longest=1) is None

    def test_the_shorter_runtime_among_equals(self) -> None:
        instances = [InstanceLoad(0, 1, 0.0), InstanceLoad(1, 1, 0.0), InstanceLoad(2, 0, 0.0)]
        assert least_busy(instances, longest=1) == instances[2]


def test_bad_inputs_are_named() -> None:
    with pytest.raises(InvalidArgument, match="slo_s must be a positive"):
        Autoscaler(0.0, min_gpus=1, max_gpus=2)
    with pytest.raises(InvalidArgument, match="min_gpus must be between 1 and max_gpus, got min_gpus 3 and max_gpus 2"):
        Autoscaler(1.0, min_gpus=3, max_gpus=2)
