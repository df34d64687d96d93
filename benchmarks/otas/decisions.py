"""Time of a policy's decision."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.otas.inputs import PROFILES, TABLE_2
from tidal.otas.policies import PaperPolicy, ParetoPolicy, Query
from tidal.otas.policies.base import GroupedPolicy

BATCHES = (8, 16, 32)
_RATE = 700.0


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """Processor time of decisions.

    Attributes:
        policy: Name of the policy.
        batches: Number of waiting batches.
        queries: Mean number of waiting queries.
        best_ms: Shortest time, in milliseconds.
        median_ms: Median time, in milliseconds.
    """

    policy: str
    batches: int
    queries: float
    best_ms: float
    median_ms: float


def decision_times(repeats: int) -> list[DecisionTime]:
    """Measure decisions on queries that arrived at 700 per second while the engine was busy.

    Latencies and utilities are up to 16 times those of Table II, because its types alone never form so many batches.

    Args:
        repeats: Number of decisions per policy and number of batches.
    """
    found = []
    makes: dict[str, Callable[..., GroupedPolicy]] = {"paper": PaperPolicy, "pareto": ParetoPolicy}
    for name, make in makes.items():
        for batches in BATCHES:
            times, queries = [], []
            gc.collect()
            for seed in range(repeats):
                policy = make(PROFILES["figure 4"])
                now = _fill(policy, batches, np.random.default_rng(seed))
                queries.append(len(policy))
                start = time.process_time()
                policy.next(now)
                times.append((time.process_time() - start) * 1e3)
            mean = statistics.fmean(queries)
            found.append(DecisionTime(name, batches, mean, min(times), statistics.median(times)))
    return found


def _fill(policy: GroupedPolicy, batches: int, rng: np.random.Generator) -> float:
    """Add queries, after the first 2 s, until a number of batches wait; returns the time in seconds."""
    policy.add(Query("CIFAR10", 0.0, 1.0), 0.0)
    first = policy.next(0.0).batch
    assert first is not None
    policy.finished(first, first.seconds)
    now = 2.0
    while policy.batches < batches:
        now += 1 / _RATE
        kind = TABLE_2[rng.integers(len(TABLE_2))]
        factor = float(rng.integers(1, 17))
        policy.add(Query(kind.task, now, now + kind.latency_s * factor, kind.utility * factor), now)
    return now
