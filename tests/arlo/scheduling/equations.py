"""Arlo's Equations 1 to 7 in plain Python, as a reference for the solver."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from tidal.arlo.scheduling import (
    AllocationProblem,
    LatencyCurve,
    MeasuredLatency,
    PoissonLatency,
    RuntimeProfile,
    capacity_within,
)


def latency(curve: LatencyCurve, load: float) -> float:
    if isinstance(curve, PoissonLatency):
        busy, horizon = load * curve.service_s / curve.slo_s, curve.horizon_s
        root = math.sqrt((busy - 1) ** 2 + 4 * busy * curve.service_s / horizon)
        return curve.service_s + horizon / 4 * (busy - 1 + root)
    assert isinstance(curve, MeasuredLatency)
    points = list(zip(curve.loads, curve.latencies_s, strict=True))
    if load <= points[0][0]:
        return points[0][1]
    for (a, low), (b, high) in itertools.pairwise(points):
        if load <= b or b == points[-1][0]:
            return low + (high - low) * (load - a) / (b - a)
    raise AssertionError


def least_instances(problem: AllocationProblem) -> list[int]:
    least = [math.floor(q / r.capacity) for q, r in zip(problem.requests.tolist(), problem.runtimes, strict=True)]
    return [*least[:-1], max(1, least[-1])]


def step(problem: AllocationProblem, i: int, left: float, count: int) -> tuple[float, float]:
    """Return ℒ_i(B_i)·C_i and R_i."""
    wanted, capacity = left + float(problem.requests[i]), problem.runtimes[i].capacity
    served = wanted if i == len(problem.runtimes) - 1 else min(wanted, count * capacity)
    cost = latency(problem.runtimes[i].mean_latency, served / count) * served if count else 0.0
    return cost, max(wanted - count * capacity, 0.0)


def cost(problem: AllocationProblem, instances: Sequence[int]) -> float:
    total = left = 0.0
    for i, count in enumerate(instances):
        added, left = step(problem, i, left, count)
        total += added
    return total


def divisions(gpus: int, least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every division of all GPUs with at least `least` per runtime."""
    if len(least) == 1:
        if gpus >= least[0]:
            yield (gpus,)
        return
    for count in range(least[0], gpus - sum(least[1:]) + 1):
        for rest in divisions(gpus - count, least[1:]):
            yield (count, *rest)


def lowest_cost(problem: AllocationProblem) -> float:
    """Return the lowest cost over every allocation."""
    return min(cost(problem, instances) for instances in divisions(problem.gpus, least_instances(problem)))


def lowest_cost_by_states(problem: AllocationProblem) -> float:
    """Return the lowest cost over all reachable states (overflow, instances used)."""
    least = least_instances(problem)
    slack, last = problem.gpus - sum(least), len(least) - 1
    states = {(0.0, 0): 0.0}
    for i in range(last):
        following: dict[tuple[float, int], float] = {}
        for (left, used), so_far in states.items():
            for extra in range(slack - used + 1):
                added, over = step(problem, i, left, least[i] + extra)
                key = over, used + extra
                following[key] = min(following.get(key, math.inf), so_far + added)
        states = following
    return min(
        so_far + step(problem, last, left, least[last] + slack - used)[0] for (left, used), so_far in states.items()
    )


def random_problem(
    rng: random.Random, gpus: int, runtimes: int, load: float, slo_s: float | None = None
) -> AllocationProblem:
    """Return a problem of random lengths, curves and SLO with a demand of about `load` times the GPUs' capacity."""
    services = sorted(rng.uniform(0.001, 0.01) for _ in range(runtimes))
    slo_s = slo_s or rng.uniform(0.012, 0.2)
    poisson = rng.random() < 0.5
    profiles = []
    for service in services:
        profile = RuntimeProfile.from_service(service, slo_s)
        if not poisson:
            loads = sorted(rng.uniform(0, 2 * profile.capacity) for _ in range(5))
            steps = sorted(service * math.exp(rng.uniform(0, 3)) for _ in range(5))
            profile = RuntimeProfile(capacity_within(slo_s, service), MeasuredLatency(tuple(loads), tuple(steps)))
        profiles.append(profile)
    shares = [rng.expovariate(1) for _ in services]
    scale = load * gpus / sum(share / p.capacity for share, p in zip(shares, profiles, strict=True))
    demand = [share * scale for share in shares]
    if rng.random() < 0.3:
        demand = [float(round(q)) for q in demand]
    if rng.random() < 0.2:
        demand[rng.randrange(runtimes)] = 0.0
    return AllocationProblem(gpus, tuple(profiles), tuple(demand))
