"""Measures an open loop of requests of mixed lengths."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.batcher.engine import VOCABULARY
from benchmarks.closed_loop import batches
from tidal.server.child import RunningServer
from tidal_client.load import Schedule, poisson, run_load

_SHORTEST, _LONGEST = 8, 512
# Clients pad to a multiple of this length, so that more requests have equal lengths.
_MULTIPLE = 16
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class BatcherCell:
    """Measurements of one batching configuration at one load.

    Attributes:
        per_second: Answers per second.
        latencies_ms: Latencies of answered requests.
        failed: Number of failed requests.
        mean_batch: Mean number of rows per execution.
    """

    per_second: float
    latencies_ms: list[float]
    failed: int
    mean_batch: float

    @property
    def mean_ms(self) -> float:
        """Mean latency in ms; infinite if no request was answered."""
        return float(np.mean(self.latencies_ms)) if self.latencies_ms else math.inf

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the latency in ms; infinite if no request was answered."""
        return float(np.percentile(self.latencies_ms, percent)) if self.latencies_ms else math.inf


def inputs(
    count: int, names: tuple[str, ...], *, seed: int
) -> list[dict[str, np.ndarray[tuple[int, int], np.dtype[np.int64]]]]:
    """Return requests of one row, with lengths from 8 to 512 tokens, distributed log-uniformly.

    Args:
        count: Number of requests.
        names: Names of the inputs.
        seed: Seed of lengths and tokens.
    """
    rng = np.random.default_rng(seed)
    made = []
    for length in np.exp2(rng.uniform(math.log2(_SHORTEST), math.log2(_LONGEST), count)).round().astype(int):
        padded = math.ceil(length / _MULTIPLE) * _MULTIPLE
        row = {name: np.zeros((1, padded), np.int64) for name in names}
        row["input_ids"][0, :length] = rng.integers(1000, VOCABULARY, length)
        row["attention_mask"][0, :length] = 1
        made.append(row)
    return made


def measure(
    server: RunningServer, model: str, names: tuple[str, ...], *, rate: float, seconds: float, seed: int
) -> BatcherCell:
    """Send requests with Poisson arrivals, or all at once.

    Args:
        server: Running server.
        model: Name of the model.
        names: Names of its inputs.
        rate: Requests per second; infinite to send 20 requests per second of `seconds` at once.
        seconds: Duration of the arrivals.
        seed: Seed of times, lengths and tokens.
    """
    warm = inputs(16, names, seed=seed + 1_000_000)
    run_load(server.grpc, model, Schedule(np.zeros(len(warm)), warm), outputs=["logits"], timeout_s=_TIMEOUT_S)
    at_once = np.zeros(math.ceil(20 * seconds))
    times = at_once if math.isinf(rate) else poisson(rate, seconds=seconds, seed=seed)
    time.sleep(0.2)
    before = batches(server, model)
    schedule = Schedule(times, inputs(len(times), names, seed=seed))
    result = run_load(server.grpc, model, schedule, outputs=["logits"], timeout_s=_TIMEOUT_S)
    rows, executions = (after - earlier for after, earlier in zip(batches(server, model), before, strict=True))
    answered = result.answered
    return BatcherCell(
        float(answered.sum()) / result.duration,
        (result.latency[answered] * 1e3).round(2).tolist(),
        int((~answered).sum()),
        rows / max(1, executions),
    )
