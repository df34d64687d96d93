"""Compare the earnings of policies with the exact optimum, on many small cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.otas.inputs import ACCURACIES, GAMMAS, TABLE_2, PaperProfile, throughput
from benchmarks.otas.optimum import most_allocated, most_earned
from tidal.otas.policies import OtasPolicy, PaperPolicy, ParetoPolicy, Query
from tidal.otas.policies.allocation import by_dynamic_programme
from tidal.otas.policies.costs import Costs
from tidal.otas.policies.labels import best_plan
from tidal.otas.profile import GammaLatency
from tidal.simulator.otas import measured_seconds

# Number of images that a query represents, so that seven queries fill the available time.
_IMAGES = 40
_QUERIES = 7
_BATCHES = (6, 9)


@dataclass(frozen=True)
class _HeavyProfile(PaperProfile):
    """Profile of queries of many images; rates in Table I are in images."""

    def gamma_for_rate(self, rate: float) -> int:
        """Return the γ of Table I for a rate of queries."""
        return super().gamma_for_rate(rate * _IMAGES)


def heavy_profile() -> PaperProfile:
    """Make a profile of batches of up to seven queries: 10 ms, plus forty images each at the throughput of γ."""
    sizes = tuple(range(1, _QUERIES + 1))
    ms = tuple(tuple(10 + 1e3 * size * _IMAGES / throughput(gamma) for size in sizes) for gamma in GAMMAS)
    latency = GammaLatency(gammas=GAMMAS, batches=sizes, median_ms=ms, p95_ms=ms, image_bytes=(0,) * len(GAMMAS))
    return _HeavyProfile(latency, ACCURACIES)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Sum of utilities over all cases, of the published policy, Tidal's policy and the optimum."""

    cases: int
    paper: float
    pareto: float
    optimum: float
    paper_optimal: int
    pareto_optimal: int

    @property
    def closed(self) -> float:
        """Share of the published policy's gap to the optimum that Tidal's policy closes."""
        return (self.pareto - self.paper) / (self.optimum - self.paper)


def policy_gaps(cases: int, seed: int = 0) -> Gaps:
    """Compare whole policies on queries of Table II that arrived in 0.6 s while the engine was busy.

    Batches take the latency of the profile, and no further query arrives.

    Args:
        cases: Number of cases.
        seed: Random seed.
    """
    rng = np.random.default_rng(seed)
    profile = heavy_profile()
    costs = Costs.of(profile)
    found = []
    for _ in range(cases):
        queries = []
        for arrival in np.sort(rng.uniform(-0.6, 0.0, _QUERIES)).tolist():
            kind = TABLE_2[rng.integers(len(TABLE_2))]
            queries.append(Query(kind.task, arrival, arrival + kind.latency_s, kind.utility))
        earnings = np.array([[q.utility * profile.accuracy(q.task, gamma) for gamma in GAMMAS] for q in queries])
        most = most_earned([query.deadline for query in queries], earnings, costs.seconds)
        found.append((_earned(PaperPolicy, profile, queries), _earned(ParetoPolicy, profile, queries), most))
    return _gaps(found)


def allocation_gaps(cases: int, seed: int = 1) -> Gaps:
    """Compare Algorithm 2 with planning by labels on given batches (problem (1)).

    A case has six to nine batches of up to 64 queries of one type of Table II each, which have from 50 ms to their full
    latency left. Both use the true latencies. The number of labels is that of a decision on 32 batches.

    Args:
        cases: Number of cases.
        seed: Random seed.
    """
    rng = np.random.default_rng(seed)
    ms = tuple(tuple(10 + 1e3 * size / throughput(gamma) for size in (1, 64)) for gamma in GAMMAS)
    latency = GammaLatency(gammas=GAMMAS, batches=(1, 64), median_ms=ms, p95_ms=ms, image_bytes=(0,) * len(GAMMAS))
    profile = PaperProfile(latency, ACCURACIES)
    costs = Costs.of(profile)
    found = []
    for _ in range(cases):
        number = int(rng.integers(_BATCHES[0], _BATCHES[1] + 1))
        kinds = [TABLE_2[i] for i in rng.integers(len(TABLE_2), size=number)]
        sizes = rng.integers(8, 65, number)
        due = np.array([rng.uniform(0.05, kind.latency_s) for kind in kinds])
        order = np.argsort(due)
        deadlines, sizes, kinds = due[order].tolist(), sizes[order].tolist(), [kinds[i] for i in order]
        earnings = np.array(
            [
                [size * kind.utility * profile.accuracy(kind.task, gamma) for gamma in GAMMAS]
                for size, kind in zip(sizes, kinds, strict=True)
            ]
        )
        seconds = costs.seconds[:, sizes].T
        places = by_dynamic_programme(0.0, deadlines, seconds.tolist(), earnings.tolist())
        paper = sum(earnings[batch, gamma_index] for batch, gamma_index in enumerate(places) if gamma_index is not None)
        runs = best_plan(0.0, deadlines, sizes, earnings, costs, labels=20)
        ours = sum(earnings[run.start, run.gamma_index] for run in runs)
        found.append((float(paper), float(ours), most_allocated(deadlines, earnings, seconds)))
    return _gaps(found)


def _earned(make: Callable[[PaperProfile], OtasPolicy], profile: PaperProfile, queries: list[Query]) -> float:
    """Return the earnings of a policy from 0 s on, on queries that arrived before."""
    policy, now, total = make(profile), 0.0, 0.0
    seconds = measured_seconds(profile)
    for query in queries:
        policy.add(query, query.arrival)
    while (batch := policy.next(now).batch) is not None:
        took = seconds(batch)
        now += took
        total += sum(
            query.utility * profile.accuracy(query.task, batch.gamma)
            for query in batch.queries
            if now <= query.deadline
        )
        policy.finished(batch, took)
    return total


def _gaps(found: list[tuple[float, float, float]]) -> Gaps:
    paper, pareto, optimum = np.array(found).T
    return Gaps(
        len(found),
        float(paper.sum()),
        float(pareto.sum()),
        float(optimum.sum()),
        int((paper > optimum - 1e-9).sum()),
        int((pareto > optimum - 1e-9).sum()),
    )
