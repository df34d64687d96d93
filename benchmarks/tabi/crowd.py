"""Queries that come whatever became of those before them: Poisson arrivals, and what a model can answer at most."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.usage import Usage
from tidal.server.child import RunningServer
from tidal_client.load import Schedule, poisson, run_load, summarise

Inputs = Sequence[Mapping[str, Any]]
_TIMEOUT_S = 120.0
_SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class Crowd:
    """One system under Poisson arrivals in one round; latency counts from the time a request should have been sent."""

    offered: float  # requests a second
    latencies_ms: list[float]  # of answered requests
    errors: dict[str, int]
    server: float  # share of the cores that the server used
    others: float  # that other work used
    warning: str  # that the load generator was the bottleneck


def capacity(server: RunningServer, model: str, inputs: Inputs, *, roughly: float, seconds: float) -> float:
    """Answers a second when there is always something to do: requests come twice as fast as they can be answered.

    `roughly` is a first guess of it.
    """
    count = max(30, round(roughly * seconds))
    schedule = Schedule(np.arange(count) / (2 * roughly), inputs[:count])
    result = run_load(server.http, model, schedule, outputs=["label"], timeout_s=_TIMEOUT_S)
    return float(result.answered.sum()) / result.duration


def measure(server: RunningServer, model: str, inputs: Inputs, *, rate: float, count: int, seed: int) -> Crowd:
    """Send `count` requests at `rate` a second on average; equal seeds give equal arrivals."""
    warm = Schedule(np.arange(10) / rate, inputs[:10])
    run_load(server.http, model, warm, outputs=["label"], timeout_s=_TIMEOUT_S)
    time.sleep(_SETTLE_S)
    schedule = Schedule(poisson(rate, count=count, seed=seed), inputs)
    usage = Usage()
    with usage.watch(server):
        result = run_load(server.http, model, schedule, outputs=["label"], timeout_s=_TIMEOUT_S)
    summary = summarise(result)
    return Crowd(
        summary.offered_rate,
        (result.latency[result.answered] * 1e3).round(3).tolist(),
        dict(summary.total.errors),
        usage.server,
        usage.others,
        summary.generator.warning,
    )
