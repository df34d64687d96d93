"""Open-loop load: Poisson arrivals, and the capacity of a model."""

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
_PAUSE_S = 0.3


@dataclass(frozen=True, slots=True)
class OpenLoopResult:
    """One system under Poisson arrivals in one round; latency counts from the time at which a request was due."""

    offered: float  # requests per second
    latencies_ms: list[float]  # of answered requests
    errors: dict[str, int]
    server: float  # share of the cores that the server used
    others: float  # share of the cores that other work used
    warning: str  # if the load generator was the bottleneck


def capacity(server: RunningServer, model: str, inputs: Inputs, *, roughly: float, seconds: float) -> float:
    """Return the answers per second under saturation: requests arrive twice as fast as they can be answered.

    Args:
        server: Running server.
        model: Model to send requests to.
        inputs: Inputs of the requests.
        roughly: Estimate of the capacity, requests per second.
        seconds: Approximate duration of the measurement.
    """
    count = max(30, round(roughly * seconds))
    schedule = Schedule(np.arange(count) / (2 * roughly), inputs[:count])
    result = run_load(server.http, model, schedule, outputs=["label"], timeout_s=_TIMEOUT_S)
    return float(result.answered.sum()) / result.duration


def measure(server: RunningServer, model: str, inputs: Inputs, *, rate: float, count: int, seed: int) -> OpenLoopResult:
    """Send requests with Poisson arrivals.

    Args:
        server: Running server.
        model: Model to send requests to.
        inputs: Inputs of the requests.
        rate: Mean rate, requests per second.
        count: Number of requests.
        seed: Seed; equal seeds give equal arrivals.
    """
    warm = Schedule(np.arange(10) / rate, inputs[:10])
    run_load(server.http, model, warm, outputs=["label"], timeout_s=_TIMEOUT_S)
    time.sleep(_PAUSE_S)
    schedule = Schedule(poisson(rate, count=count, seed=seed), inputs)
    usage = Usage()
    with usage.watch(server):
        result = run_load(server.http, model, schedule, outputs=["label"], timeout_s=_TIMEOUT_S)
    summary = summarise(result)
    return OpenLoopResult(
        summary.offered_rate,
        (result.latency[result.answered] * 1e3).round(3).tolist(),
        dict(summary.total.errors),
        usage.server,
        usage.others,
        summary.generator.warning,
    )
