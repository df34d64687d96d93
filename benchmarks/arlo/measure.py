"""One cell: an open loop of requests against one model, and what the server did meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.arlo.workload import Workload
from benchmarks.serving_path.closed_loop import batches, closed_loop, cpu_seconds
from tidal.server.child import RunningServer
from tidal_client.load import Schedule, run_load, summarise

_SETTLE_S = 0.4
_TIMEOUT_S = 120.0
_WARM_SEED = 7


@dataclass(frozen=True, slots=True)
class Cell:
    """One system at one load in one round."""

    model: str
    offered: float  # requests a second
    latencies_ms: list[float]  # of answered requests, from the scheduled time of sending
    errors: dict[str, int]
    mean_batch: float
    utilisation: float  # share of the cores that the server's processes used
    warning: str  # that the load generator was the bottleneck

    @property
    def mean_ms(self) -> float:
        """Mean latency."""
        return float(np.mean(self.latencies_ms)) if self.latencies_ms else float("inf")

    def percentile_ms(self, percent: float) -> float:
        """Latency that so many percent of the answered requests do not exceed."""
        return float(np.percentile(self.latencies_ms, percent)) if self.latencies_ms else float("inf")


def measure(server: RunningServer, model: str, schedule: Schedule, workload: Workload) -> Cell:
    """Send a schedule to a model that is loaded."""
    warm_up(server, model, workload, seconds=0.5)
    time.sleep(_SETTLE_S)  # metrics are published every 200 ms
    before, cpu = batches(server, model), cpu_seconds(server)
    result = run_load(server.http, model, schedule, outputs=["label", "logits"], timeout_s=_TIMEOUT_S)
    cpu = cpu_seconds(server) - cpu
    time.sleep(_SETTLE_S)
    queries, executions = (b - a for a, b in zip(before, batches(server, model), strict=True))
    summary = summarise(result)
    return Cell(
        model,
        summary.offered_rate,
        (result.latency[result.answered] * 1e3).round(2).tolist(),
        dict(summary.total.errors),
        queries / max(1, executions),
        cpu / summary.duration_s / (psutil.cpu_count() or 1),
        summary.generator.warning,
    )


def capacity(server: RunningServer, model: str, workload: Workload, *, seconds: float, seed: int) -> float:
    """Answers a second when there is always something to do."""
    texts = workload.texts(round(400 * seconds), seed)
    return closed_loop(server, model, texts, concurrency=8, seconds=seconds).per_second


def warm_up(server: RunningServer, model: str, workload: Workload, *, seconds: float) -> None:
    """Let every instance and many lengths run once."""
    closed_loop(server, model, workload.texts(round(200 * seconds), _WARM_SEED), concurrency=8, seconds=seconds)
