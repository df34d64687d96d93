"""Measures one cell: an open loop of requests to one model, with the server's metrics over the same time."""

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
# A model that answers a larger share of the offered requests is not saturated.
_SATURATED = 0.75
_WARM_SEED = 7


@dataclass(frozen=True, slots=True)
class ArloCell:
    """Measurements of one system at one load in one round.

    Attributes:
        model: Name of the model.
        offered: Offered requests per second.
        latencies_ms: Latencies of answered requests, from the scheduled time of sending.
        errors: Number of failed requests by error.
        mean_batch: Mean number of queries per engine execution.
        utilisation: Share of the cores that the server's processes used.
        others: Share of the cores that processes other than server and load generator used: near 0 on an idle machine.
        warning: Warning that the load generator was the bottleneck; "" if it was not.
    """

    model: str
    offered: float
    latencies_ms: list[float]
    errors: dict[str, int]
    mean_batch: float
    utilisation: float
    others: float
    warning: str

    @property
    def mean_ms(self) -> float:
        """Mean latency in ms; infinite if no request was answered."""
        return float(np.mean(self.latencies_ms)) if self.latencies_ms else float("inf")

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the latency in ms; infinite if no request was answered."""
        return float(np.percentile(self.latencies_ms, percent)) if self.latencies_ms else float("inf")


def measure(server: RunningServer, model: str, schedule: Schedule, workload: ArloWorkload) -> ArloCell:
    """Send a schedule to a loaded model."""
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
    """Measure the answers per second of a saturated model: requests arrive at twice the rate of the answers.

    The rate is doubled until the model is saturated. A closed loop would measure less: its clients use a part of the
    same cores for every answer, and the open loops that the result is used for do not.

    Args:
        server: Running server.
        model: Name of the model.
        workload: Generator of texts.
        seconds: Approximate duration.
        seed: Seed of the texts.
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
    """Run all instances and many lengths by a closed loop; return its answers per second."""
    texts = workload.texts(round(400 * seconds), _WARM_SEED)
    return closed_loop(server, model, texts, concurrency=8, seconds=seconds).per_second


def _busy_seconds() -> float:
    """Return the CPU seconds that all processes of the machine have used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
