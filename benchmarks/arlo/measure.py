"""One cell: an open loop of requests against one model, and what the server did meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.arlo.workload import ArloWorkload
from benchmarks.closed_loop import batches, closed_loop, cpu_seconds
from tidal.server.child import RunningServer
from tidal_client.load import Schedule, run_load, summarise, text_inputs

_METRICS_DELAY_S = 0.4
_TIMEOUT_S = 120.0
# A model that answers a larger share of what is offered is not at its limit.
_SATURATED = 0.75
_WARM_SEED = 7


@dataclass(frozen=True, slots=True)
class ArloCell:
    """One system at one load in one round."""

    model: str
    offered: float  # requests a second
    latencies_ms: list[float]  # of answered requests, from the scheduled time of sending
    errors: dict[str, int]
    mean_batch: float
    utilisation: float  # share of the cores that the server's processes used
    others: float  # share that anything but server and load generator used: near 0 on a quiet machine
    warning: str  # that the load generator was the bottleneck

    @property
    def mean_ms(self) -> float:
        """Mean latency."""
        return float(np.mean(self.latencies_ms)) if self.latencies_ms else float("inf")

    def percentile_ms(self, percent: float) -> float:
        """Latency that so many percent of the answered requests do not exceed."""
        return float(np.percentile(self.latencies_ms, percent)) if self.latencies_ms else float("inf")


def measure(server: RunningServer, model: str, schedule: Schedule, workload: ArloWorkload) -> ArloCell:
    """Send a schedule to a model that is loaded."""
    warm_up(server, model, workload, seconds=0.5)
    time.sleep(_METRICS_DELAY_S)  # metrics are published every 200 ms
    before, own, busy, start = batches(server, model), cpu_seconds(server), _busy_seconds(), time.monotonic()
    result = run_load(server.http, model, schedule, outputs=["label", "logits"], timeout_s=_TIMEOUT_S)
    own, busy = cpu_seconds(server) - own, _busy_seconds() - busy
    available = (time.monotonic() - start) * (psutil.cpu_count() or 1)
    time.sleep(_METRICS_DELAY_S)
    queries, executions = (b - a for a, b in zip(before, batches(server, model), strict=True))
    summary = summarise(result)
    return ArloCell(
        model,
        summary.offered_rate,
        (result.latency[result.answered] * 1e3).round(2).tolist(),
        dict(summary.total.errors),
        queries / max(1, executions),
        own / available,
        max(0.0, busy - own - result.cpu_s) / available,
        summary.generator.warning,
    )


def capacity(server: RunningServer, model: str, workload: ArloWorkload, *, seconds: float, seed: int) -> float:
    """Answers a second when there is always something to do: requests come twice as fast as they can be answered.

    Not by a closed loop, whose clients need a part of the same cores for every answer, which the open loops that the
    result is used for do not. Where almost all requests are answered as they come, the model can do more.
    """
    found = warm_up(server, model, workload, seconds=max(0.5, seconds / 5))
    while True:
        offered = 2 * found
        count = max(20, round(found * seconds))
        schedule = Schedule(np.arange(count) / offered, text_inputs(workload.texts(count, seed)))
        result = run_load(server.http, model, schedule, outputs=["label", "logits"], timeout_s=_TIMEOUT_S)
        found = float(result.answered.sum()) / result.duration
        if found < _SATURATED * offered:
            return found


def warm_up(server: RunningServer, model: str, workload: ArloWorkload, *, seconds: float) -> float:
    """Let every instance and many lengths run once, by a closed loop; its answers a second."""
    texts = workload.texts(round(400 * seconds), _WARM_SEED)
    return closed_loop(server, model, texts, concurrency=8, seconds=seconds).per_second


def _busy_seconds() -> float:
    """Processor time that all processes of the machine have used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
