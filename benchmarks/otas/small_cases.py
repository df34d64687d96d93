"""How much of what a few queries could earn each policy earns: against the exact optimum, on many small cases."""

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

# A query stands for so many images: then seven fill the seconds that they have.
_IMAGES = 40
_QUERIES = 7
_BATCHES = (6, 9)


@dataclass(frozen=True)
class _HeavyProfile(PaperProfile):
    """Queries of many images; the arrival rate is one of images in Table I."""

    def gamma_for_rate(self, rate: float) -> int:
        """Table I, by images."""
        return super().gamma_for_rate(rate * _IMAGES)


def heavy_profile() -> PaperProfile:
    """Batches of up to seven queries: 10 ms to begin, and forty images each at the throughput of γ."""
    sizes = tuple(range(1, _QUERIES + 1))
    ms = tuple(tuple(10 + 1e3 * size * _IMAGES / throughput(gamma) for size in sizes) for gamma in GAMMAS)
    latency = GammaLatency(gammas=GAMMAS, batches=sizes, median_ms=ms, p95_ms=ms, image_bytes=(0,) * len(GAMMAS))
    return _HeavyProfile(latency, ACCURACIES)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Utility of all cases in sum: the published policy's, ours, and the most that there is."""

    cases: int
    paper: float
    pareto: float
    optimum: float
    paper_optimal: int
    pareto_optimal: int

    @property
    def closed(self) -> float:
        """The share of the published policy's gap that ours closes."""
        return (self.pareto - self.paper) / (self.optimum - self.paper)


def policy_gaps(cases: int, seed: int = 0) -> Gaps:
    """Queries of Table II that came over the last 0.6 s while the engine was busy; nothing comes after.

    Policies decide as they do when they serve; a batch takes what the profile says.
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
    """Algorithm 2 alone against labels alone: problem (1) for batches that are given and stay whole.

    Six to nine batches of up to 64 queries of one type of Table II each, which have 50 ms to all of their latency left.
    Both know what batches really take. Labels are as few as a decision on 32 batches keeps.
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
    """What a policy earns from 0 s on of queries that came before."""
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
