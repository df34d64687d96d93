"""The solver compared with hand-worked examples, brute force, HiGHS and an exhaustive search; its constraints."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.arlo.scheduling import equations
from tests.arlo.scheduling.highs import lowest_cost_by_highs
from tidal.arlo.scheduling import AllocationProblem, MeasuredLatency, RuntimeProfile, solve

# ℒ(B) = 1 + B/10 with capacity 10, and 2 + B/5 with capacity 5.
SHORT = RuntimeProfile(10, MeasuredLatency((0, 10), (1, 2)))
LONG = RuntimeProfile(5, MeasuredLatency((0, 5), (2, 3)))


def feasible_problem(seed: int, gpus: int, runtimes: int, low: float = 0.3, high: float = 1.1) -> AllocationProblem:
    """Return a random problem with Σ ⌊Q_i/M_i⌋ <= G."""
    rng = random.Random(seed)
    while True:
        problem = equations.random_problem(rng, gpus, runtimes, rng.uniform(low, high))
        if sum(equations.least_instances(problem)) <= gpus:
            return problem


def tight_problem(rng: random.Random, gpus: int, runtimes: int, slack: int) -> AllocationProblem:
    """Return a random problem whose least instances (Eq. 3) leave `slack` GPUs."""
    runtime_profiles = equations.random_problem(rng, gpus, runtimes, 1.0).runtimes
    least = [1] * runtimes
    for _ in range(gpus - slack - runtimes):
        least[rng.randrange(runtimes)] += 1
    demand = tuple((n + rng.random()) * r.capacity for n, r in zip(least, runtime_profiles, strict=True))
    return AllocationProblem(gpus, runtime_profiles, demand)


class TestHandWorked:
    def test_the_extra_instance_goes_where_it_saves_most(self) -> None:
        # (1, 2): 2 requests overflow; 10·ℒ(10) + 6·ℒ(3) = 10·2 + 6·2.6 = 35.6
        # (2, 1): none does;            12·ℒ(6) + 4·ℒ(4) = 12·1.6 + 4·2.8 = 30.4
        solution = solve(AllocationProblem(3, (SHORT, LONG), (12, 4)))
        assert solution.instances == (2, 1)
        assert solution.cost_s == pytest.approx(30.4)
        assert solution.mean_latency_s == pytest.approx(30.4 / 16)

    def test_no_instance_for_demand_that_the_next_runtime_serves(self) -> None:
        # (1, 2): 1·ℒ(1) + 10·ℒ(5) = 1.1 + 30 = 31.1;  (0, 3): 11·ℒ(11/3) = 11·(2 + 11/15) = 30.0667
        solution = solve(AllocationProblem(3, (SHORT, LONG), (1, 10)))
        assert solution.instances == (0, 3)
        assert solution.cost_s == pytest.approx(11 * (2 + 11 / 15))

    def test_the_last_runtime_serves_more_than_its_capacity(self) -> None:
        # Eq. 3 allows (1, 1) only: 1 request overflows, so the last serves 9 + 1 with a capacity of 5.
        solution = solve(AllocationProblem(2, (SHORT, LONG), (11, 9)))
        assert solution.instances == (1, 1)
        assert solution.cost_s == pytest.approx(10 * 2 + 10 * (2 + 10 / 5))
        assert solution.beyond_capacity == 5


class TestOptimality:
    def test_small_cases_against_brute_force(self) -> None:
        rng = random.Random(1)
        for case in range(300):
            problem = feasible_problem(case, rng.randint(1, 11), rng.randint(1, 5))
            solution = solve(problem)
            assert solution.cost_s == pytest.approx(equations.cost(problem, solution.instances), rel=1e-9), case
            assert solution.cost_s == pytest.approx(equations.lowest_cost(problem), rel=1e-9), case

    @pytest.mark.parametrize("seed", range(6))
    def test_medium_cases_against_highs(self, seed: int) -> None:
        problem = feasible_problem(seed, 24, 6, 0.8)
        assert solve(problem).cost_s == pytest.approx(lowest_cost_by_highs(problem), rel=1e-6)

    @pytest.mark.parametrize(("gpus", "runtimes"), [(50, 8), (200, 12), (1000, 16)])
    def test_the_paper_s_sizes_against_an_exhaustive_search(self, gpus: int, runtimes: int) -> None:
        rng = random.Random(gpus)
        for case in range(4):
            problem = tight_problem(rng, gpus, runtimes, slack=2 * case + 2)
            assert solve(problem).cost_s == pytest.approx(equations.lowest_cost_by_states(problem), rel=1e-9), case

    def test_constant_latencies_make_a_knapsack(self) -> None:
        # ℒ does not depend on the load: only what overflows costs, and convexity is of no help.
        rng = random.Random(5)
        for case in range(40):
            profiles = tuple(
                RuntimeProfile(capacity, MeasuredLatency((0, 1), (1 / capacity, 1 / capacity)))
                for capacity in sorted((rng.randint(3, 40) for _ in range(8)), reverse=True)
            )
            demand = tuple((rng.randint(0, 4) + rng.random()) * profile.capacity for profile in profiles)
            gpus = sum(int(q // p.capacity) for q, p in zip(demand, profiles, strict=True)) + rng.randint(1, 5)
            problem = AllocationProblem(gpus, profiles, demand)
            assert solve(problem).cost_s == pytest.approx(equations.lowest_cost_by_states(problem), rel=1e-9), case

    def test_capacities_may_rise_with_length(self) -> None:
        rng = random.Random(3)
        for case in range(100):
            problem = feasible_problem(case, rng.randint(4, 10), 4)
            backwards = AllocationProblem(problem.gpus, problem.runtimes[::-1], problem.demand)
            if sum(equations.least_instances(backwards)) <= backwards.gpus:
                assert solve(backwards).cost_s == pytest.approx(equations.lowest_cost(backwards), rel=1e-9), case


class TestConstraints:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 120), st.integers(1, 10), st.floats(0.05, 1.0))
    def test_equations_2_3_and_7_hold(self, seed: int, gpus: int, runtimes: int, load: float) -> None:
        problem = equations.random_problem(random.Random(seed), gpus, runtimes, load)
        least = equations.least_instances(problem)
        instances = solve(problem).instances
        assert sum(instances) == gpus
        assert min(instances) >= 0
        assert instances[-1] >= 1
        assume(sum(least) <= gpus)
        assert all(count >= fewest for count, fewest in zip(instances, least, strict=True))

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 120), st.integers(1, 10), st.floats(0.05, 1.0))
    def test_one_more_gpu_never_costs_more(self, seed: int, gpus: int, runtimes: int, load: float) -> None:
        problem = equations.random_problem(random.Random(seed), gpus, runtimes, load)
        assume(sum(equations.least_instances(problem)) <= gpus)
        more = AllocationProblem(gpus + 1, problem.runtimes, problem.demand)
        assert solve(more).cost_s <= solve(problem).cost_s * (1 + 1e-9)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(10, 1000), st.integers(2, 16), st.floats(0.05, 1.0))
    def test_no_move_of_an_instance_lowers_the_cost(self, seed: int, gpus: int, runtimes: int, load: float) -> None:
        problem = equations.random_problem(random.Random(seed), gpus, runtimes, load)
        assume(problem.least.sum() <= gpus)
        solution = solve(problem)
        one = np.eye(runtimes, dtype=np.int64)
        moved = (np.array(solution.instances) + one[:, None] - one[None]).reshape(-1, runtimes)
        moved = moved[(moved >= problem.least).all(axis=1)]
        assert problem.costs(moved).min() >= solution.cost_s * (1 - 1e-9)


class TestDegenerate:
    def test_without_demand_the_longest_runtime_gets_all(self) -> None:
        solution = solve(AllocationProblem(7, (SHORT, SHORT, LONG), (0, 0, 0)))
        assert solution.instances == (0, 0, 7)
        assert (solution.cost_s, solution.mean_latency_s, solution.shortfall) == (0, 0, None)

    def test_instances_without_gain_go_to_the_longest(self) -> None:
        flat = MeasuredLatency((0, 10), (1, 1))
        problem = AllocationProblem(6, tuple(RuntimeProfile(10, flat) for _ in range(3)), (15, 5, 5))
        assert solve(problem).instances == (1, 0, 5)

    def test_one_runtime_gets_all(self) -> None:
        assert solve(AllocationProblem(5, (LONG,), (3,))).instances == (5,)

    def test_one_gpu_runs_the_longest(self) -> None:
        assert solve(AllocationProblem(1, (SHORT, LONG), (3, 1))).instances == (0, 1)

    def test_a_demand_of_exactly_the_capacity_needs_no_more(self) -> None:
        solution = solve(AllocationProblem(3, (SHORT, LONG), (20, 5)))
        assert solution.instances == (2, 1)
        assert solution.beyond_capacity == 0
        assert solution.shortfall is None

    def test_a_demand_rounded_off_the_capacity_needs_no_more(self) -> None:
        assert 0.1 * 3 * 100 > 30
        assert 4.35 * 100 < 435
        problem = AllocationProblem(90, (SHORT, LONG), (0.1 * 3 * 100, 4.35 * 100))
        assert problem.least.tolist() == [3, 87]
        solution = solve(problem)
        assert (solution.instances, solution.beyond_capacity, solution.gpus_short) == ((3, 87), 0, 0)

    def test_same_problem_same_answer(self) -> None:
        problem = feasible_problem(9, 300, 12)
        assert solve(problem) == solve(problem)
