"""Demands beyond the GPUs' capacity, the fewest GPUs that suffice, and the start allocation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.scheduling import equations
from tidal.arlo.scheduling import AllocationProblem, MeasuredLatency, RuntimeProfile, min_gpus, solve, start_allocation
from tidal.errors import InvalidArgument

SHORT = RuntimeProfile(10, MeasuredLatency((0, 10), (1, 2)))
LONG = RuntimeProfile(5, MeasuredLatency((0, 5), (2, 3)))


def finishes_all(problem: AllocationProblem, instances: tuple[int, ...]) -> bool:
    left = 0.0
    for i, count in enumerate(instances):
        _, left = equations.step(problem, i, left, count)
    return left == 0


class TestFewestGpus:
    def test_small_cases_against_brute_force(self) -> None:
        rng = random.Random(2)
        for case in range(150):
            problem = equations.random_problem(rng, rng.randint(1, 6), rng.randint(1, 4), rng.uniform(0.2, 1.3))
            least = equations.least_instances(problem)
            gpus = sum(least)
            while not any(finishes_all(problem, n) for n in equations.divisions(gpus, least)):
                gpus += 1
            assert min_gpus(problem) == gpus, case

    def test_remainders_share_an_instance_of_a_longer_runtime(self) -> None:
        # 2 and 3 requests fit one instance of 5; 3 and 3 do not.
        assert min_gpus(AllocationProblem(1, (SHORT, LONG), (12, 3))) == 2
        assert min_gpus(AllocationProblem(1, (SHORT, LONG), (13, 3))) == 3


class TestInfeasible:
    def test_all_lengths_are_scaled_alike(self) -> None:
        # 4 + 2 instances are needed and 3 available: half of each demand fits 2 + 1.
        solution = solve(AllocationProblem(3, (SHORT, LONG), (40, 10)))
        assert solution.instances == (2, 1)
        assert solution.share == pytest.approx(0.5, abs=1e-6)
        assert solution.gpus_short == 3
        # 20 overflow from the first, 10 of its own: 30 for an instance that can take 5.
        assert solution.beyond_capacity == 25
        assert solution.cost_s == pytest.approx(20 * 2 + 30 * (2 + 30 / 2 / 5 * 2))

    def test_the_message_names_gpus_and_requests(self) -> None:
        text = solve(AllocationProblem(3, (SHORT, LONG), (40, 10))).shortfall
        assert text == (
            "3 more GPUs are needed: with 3, about 25.0 requests per period miss the SLO; "
            "optimised for 50% of every length's demand"
        )

    def test_too_little_capacity_is_solved_unscaled_if_equation_3_holds(self) -> None:
        solution = solve(AllocationProblem(2, (SHORT, LONG), (19, 4)))
        assert solution.instances == (1, 1)
        assert (solution.share, solution.gpus_short, solution.beyond_capacity) == (1.0, 1, 8)
        assert solution.shortfall is not None
        assert "chosen for" not in solution.shortfall

    def test_one_gpu_for_everything(self) -> None:
        solution = solve(AllocationProblem(1, (SHORT, SHORT, LONG), (1000, 1000, 1000)))
        assert solution.instances == (0, 0, 1)
        assert solution.gpus_short == 399
        assert solution.beyond_capacity == 2995

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 10), st.floats(1.05, 8.0))
    def test_the_reported_missing_gpus_suffice(self, seed: int, gpus: int, runtimes: int, load: float) -> None:
        problem = equations.random_problem(random.Random(seed), gpus, runtimes, load)
        solution = solve(problem)
        assert sum(solution.instances) == gpus
        assert solution.instances[-1] >= 1
        assert solution.gpus_short == max(0, min_gpus(problem) - gpus)
        assert (solution.gpus_short > 0) <= (solution.beyond_capacity > 0)
        assert (solution.shortfall is None) == (solution.gpus_short == 0)
        assert 0 <= solution.share <= 1
        helped = AllocationProblem(gpus + solution.gpus_short, problem.runtimes, problem.demand)
        assert solve(helped).gpus_short == 0

    def test_the_served_share_is_the_largest_that_fits(self) -> None:
        problem = equations.random_problem(random.Random(4), 20, 6, 2.5)
        solution = solve(problem)
        assert solution.share < 1
        assert min_gpus(problem.scaled(solution.share)) <= problem.gpus
        assert min_gpus(problem.scaled(solution.share + 1e-4)) > problem.gpus


class TestStart:
    def test_even_without_history_with_the_rest_to_the_longest(self) -> None:
        assert start_allocation(8, [SHORT] * 3) == (2, 3, 3)
        assert start_allocation(2, [SHORT] * 3) == (0, 1, 1)
        assert start_allocation(8, [SHORT] * 3, [0, 0, 0]) == (2, 3, 3)

    def test_from_history(self) -> None:
        assert start_allocation(3, [SHORT, LONG], [12, 4]) == (2, 1)

    def test_bad_input(self) -> None:
        with pytest.raises(InvalidArgument, match="gpus and runtimes must be at least 1, got 0 and 1"):
            start_allocation(0, [SHORT])
