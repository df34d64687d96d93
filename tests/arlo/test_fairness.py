"""Fairness of the polymorphic policy between short and long queries, with measured profiles and a virtual clock."""

from __future__ import annotations

import heapq
import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pets.fairness import LOADS, MIXTURES, Closed, Lengths, Open
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.policies import PolymorphicPolicy
from tidal.arlo.policies.base import ArloBatch, ArloQuery
from tidal.profiles import LatencyProfile

# As `tidal build` measured them: all-MiniLM-L6-v2, OpenVINO, two cores; one engine on both, and one on each.
MEASURED = json.loads((Path(__file__).parent / "minilm_profiles.json").read_text())
WIDE, NARROW = (LatencyProfile.model_validate(MEASURED[name]) for name in ("profile", "parallel"))
RUNTIMES = (32, 64, 128, 256, 512)
# Queries that are not counted: the queue is still growing.
WARM_UP = 100


def latencies(weight: float, lengths: Lengths, load: Closed | Open, queries: int, rate: float = 0.0) -> np.ndarray:
    """Return tokens and seconds [queries + 1, 2] of queries in order of completion; the last row is the end time."""
    policy = PolymorphicPolicy(RUNTIMES, WIDE, NARROW, static_upto=0, max_batch=16, service_weight=weight)
    draw, number = np.random.default_rng(0), count()
    arrivals = np.zeros(load.in_flight) if isinstance(load, Closed) else draw.exponential(1 / rate, queries).cumsum()
    coming = [(float(at), next(number), ArloQuery(lengths(draw), float(at))) for at in arrivals]
    running: list[tuple[float, int, ArloBatch, float]] = []
    answered: list[tuple[int, float]] = []
    now = 0.0
    while len(answered) < queries:
        while coming and coming[0][0] <= now:
            policy.submit(heapq.heappop(coming)[2])
        while (batch := policy.next_batch(now)) is not None:
            table = (WIDE if batch.lane < WIDE.concurrency else NARROW).table_ms
            took = float(table[max(query.length for query in batch.queries)][len(batch.queries)]) / 1e3
            heapq.heappush(running, (now + took, next(number), batch, took))
        now = min(events[0][0] for events in (coming, running) if events)
        while running and running[0][0] <= now:
            _, _, batch, took = heapq.heappop(running)
            policy.finished(batch, took)
            for query in batch.queries:
                answered.append((query.length, now - query.arrival))
                if isinstance(load, Closed):
                    heapq.heappush(coming, (now, next(number), ArloQuery(lengths(draw), now)))
    return np.array([*answered, (0, now)])


def p99s(found: np.ndarray) -> tuple[float, float, float]:
    """Return the p99 of the shortest and the longest tenth of queries, and the longest one's service time, in ms."""
    ordered = found[WARM_UP:-1][np.argsort(found[WARM_UP:-1, 0], kind="stable")]
    tenth = len(ordered) // 10
    short, long = (float(np.percentile(part[:, 1], 99)) * 1e3 for part in (ordered[:tenth], ordered[-tenth:]))
    return short, long, float(WIDE.table_ms[int(ordered[-1, 0])][1])


def rate_of(found: np.ndarray) -> float:
    return (len(found) - 1) / float(found[-1, 1])


@pytest.fixture(scope="module")
def capacities() -> dict[str, float]:
    default = ArloParameters().service_weight
    return {name: rate_of(latencies(default, lengths, Closed(128), 1000)) for name, lengths in MIXTURES.items()}


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_longest_wait_at_most_twice_as_long_as_the_shortest(
    capacities: dict[str, float], mixture: str, load: Closed | Open
) -> None:
    rate = capacities[mixture] * load.load if isinstance(load, Open) else 0.0
    found = latencies(ArloParameters().service_weight, MIXTURES[mixture], load, 1500, rate)
    short, long, own = p99s(found)
    assert long <= 2 * short + own


def test_a_larger_weight_makes_long_queries_wait_and_gains_no_throughput() -> None:
    fair, weighted = (latencies(weight, MIXTURES["uniform"], Closed(8), 1500) for weight in (1.0, 8.0))
    short, long, own = p99s(weighted)
    assert long > 2 * short + own  # the test above would fail
    assert rate_of(fair) > 0.98 * rate_of(weighted)
