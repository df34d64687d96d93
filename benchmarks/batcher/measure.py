"""Requests of mixed lengths in an open loop, and what became of them."""

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
# Clients pad to a multiple of this: what one does who wants lengths to meet.
_MULTIPLE = 16
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class BatcherCell:
    """One way to batch at one load: answers, and how many rows an execution had."""

    per_second: float
    latencies_ms: list[float]
    failed: int
    mean_batch: float

    @property
    def mean_ms(self) -> float:
        """Mean latency; infinite where nothing was answered."""
        return float(np.mean(self.latencies_ms)) if self.latencies_ms else math.inf

    def percentile_ms(self, percent: float) -> float:
        """Latency that so many percent of the answered requests do not exceed."""
        return float(np.percentile(self.latencies_ms, percent)) if self.latencies_ms else math.inf


def inputs(
    count: int, names: tuple[str, ...], *, seed: int
) -> list[dict[str, np.ndarray[tuple[int, int], np.dtype[np.int64]]]]:
    """Requests of one row: lengths from 8 to 512 tokens, each power of two as often as the next."""
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
    """Send requests at random times (`rate` a second), or all at once where the rate is infinite.

    `seconds` is then how long 20 requests a second would take.
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
