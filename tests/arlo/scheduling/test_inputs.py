"""Demand, capacity and latency curves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.arlo.scheduling import (
    AllocationProblem,
    MeasuredLatency,
    PoissonLatency,
    RuntimeProfile,
    capacity_within,
    demand_by_runtime,
)
from tidal.errors import InvalidArgument

RUNTIME = RuntimeProfile.from_service(0.005, 0.15)


class TestCapacity:
    def test_figure_4(self) -> None:
        assert [capacity_within(0.480, service) for service in (0.006, 0.012, 0.024)] == [80, 40, 20]

    def test_a_quotient_that_floating_point_makes_too_small(self) -> None:
        assert 0.3 / 0.1 < 3
        assert capacity_within(0.3, 0.1) == 3

    def test_never_less_than_one(self) -> None:
        assert capacity_within(0.1, 3.0) == 1

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_bad_input(self, bad: float) -> None:
        with pytest.raises(InvalidArgument, match="slo_s must be a positive"):
            capacity_within(bad, 1.0)
        with pytest.raises(InvalidArgument, match="service_s must be a positive"):
            capacity_within(1.0, bad)


class TestDemand:
    def test_mean_requests_in_one_slo_period(self) -> None:
        counts = {1: 100, 64: 200, 65: 50, 128: 50, 512: 10}
        assert demand_by_runtime(counts, (64, 128, 256, 512), observed_s=120, slo_s=0.15) == pytest.approx(
            (300 / 800, 100 / 800, 0, 10 / 800)
        )

    def test_nothing_observed(self) -> None:
        assert demand_by_runtime({}, (64, 128), observed_s=120, slo_s=0.15) == (0, 0)

    def test_bad_inputs_are_named(self) -> None:
        with pytest.raises(InvalidArgument, match="a length must be between 1 and 128 tokens, got 129"):
            demand_by_runtime({129: 1}, (64, 128), observed_s=1, slo_s=1)
        with pytest.raises(InvalidArgument, match="the count of length 3 must be a number of requests, got -1"):
            demand_by_runtime({3: -1}, (64, 128), observed_s=1, slo_s=1)
        with pytest.raises(InvalidArgument, match="observed_s must be a positive"):
            demand_by_runtime({}, (64, 128), observed_s=0, slo_s=1)
        with pytest.raises(InvalidArgument, match="max_lengths must be ascending"):
            demand_by_runtime({}, (64, 64), observed_s=1, slo_s=1)


class TestProblem:
    def test_bad_inputs_are_named(self) -> None:
        with pytest.raises(InvalidArgument, match="gpus must be at least 1, got 0"):
            AllocationProblem(0, (RUNTIME,), (1,))
        with pytest.raises(InvalidArgument, match="runtimes must not be empty"):
            AllocationProblem(1, (), ())
        with pytest.raises(InvalidArgument, match="demand must have a number for each of the 1 runtimes, got 2"):
            AllocationProblem(1, (RUNTIME,), (1, 2))
        with pytest.raises(InvalidArgument, match="capacity of runtime 0 must be at least 1 request, got 0"):
            AllocationProblem(1, (RuntimeProfile(0, RUNTIME.mean_latency),), (1,))
        for bad in (-0.1, math.nan, math.inf):
            with pytest.raises(InvalidArgument, match="demand 0 must be between 0 and"):
                AllocationProblem(1, (RUNTIME,), (bad,))


def mean_wait(rng: np.random.Generator, busy: float, service: float, horizon: float, runs: int) -> float:
    """Mean wait of Poisson arrivals at an empty server with constant service time, by simulation."""
    waits = []
    for _ in range(runs):
        arrivals = np.sort(rng.uniform(0, horizon, rng.poisson(busy / service * horizon)))
        # Lindley: a request waits for the largest of the backlogs that begin with any request before it.
        ahead = np.arange(len(arrivals)) * service - arrivals
        waits.append(ahead - np.minimum.accumulate(ahead))
    return float(np.concatenate(waits).mean())


class TestPoissonLatency:
    @pytest.mark.parametrize(("busy", "tolerance"), [(0.3, 0.05), (0.6, 0.05), (0.9, 0.05), (1.0, 0.15), (1.3, 0.05)])
    def test_wait_of_simulated_arrivals(self, busy: float, tolerance: float) -> None:
        service, slo, horizon = 0.005, 0.15, 30.0
        curve = PoissonLatency(service, slo, horizon)
        wait = float(curve(np.array(busy * slo / service))) - service
        simulated = mean_wait(np.random.default_rng(1), busy, service, horizon, 200)
        assert wait == pytest.approx(simulated, rel=tolerance)

    def test_an_idle_instance_takes_its_service_time(self) -> None:
        assert PoissonLatency(0.005, 0.15)(np.array([0.0, 1e-9])) == pytest.approx(0.005)

    @given(st.floats(1e-4, 1), st.floats(1e-3, 10), st.floats(1, 1000))
    def test_never_falls(self, service: float, slo: float, horizon: float) -> None:
        latencies = PoissonLatency(service, slo, horizon)(np.linspace(0, 3 * slo / service, 200))
        assert np.isfinite(latencies).all()
        assert (np.diff(latencies) >= -1e-12).all()

    def test_bad_input(self) -> None:
        with pytest.raises(InvalidArgument, match="horizon_s must be a positive, finite number of seconds, got 0"):
            PoissonLatency(1, 1, 0)


class TestMeasuredLatency:
    def test_between_below_and_above_the_points(self) -> None:
        curve = MeasuredLatency((1, 3, 5), (10, 20, 40))
        assert curve(np.array([0.0, 1, 2, 4, 5, 7])) == pytest.approx([10, 10, 15, 30, 40, 60])

    def test_bad_inputs_are_named(self) -> None:
        with pytest.raises(InvalidArgument, match="must have the same length, at least 2, got 1 and 1"):
            MeasuredLatency((1,), (1,))
        with pytest.raises(InvalidArgument, match="loads must be ascending"):
            MeasuredLatency((1, 1), (1, 2))
        with pytest.raises(InvalidArgument, match="latencies_s must be positive and finite and must not fall"):
            MeasuredLatency((1, 2), (2, 1))
