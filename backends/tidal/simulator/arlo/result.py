"""What a simulated run gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidal.simulator.requests import Floats


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The end of a second.

    Args:
        at: seconds.
        gpus: GPUs there are.
        instances: GPUs by runtime, those that load it included; all 0 where lanes are no instances of a runtime.
        waiting: queries that wait.
    """

    at: float
    gpus: int
    instances: tuple[int, ...]
    waiting: int


@dataclass(frozen=True)
class ClusterResult:
    """One run of one system; every request was answered.

    Args:
        name: of the system.
        max_lengths: of its runtimes.
        requests: that arrived.
        seconds: how long they arrived.
        latencies_s: from arrival to answer, overhead included, in the order of the answers.
        moments: one a second, until the last answer.
        busy_s: GPU seconds of work by runtime.
        demotions: queries that went to another runtime than the shortest that fits.
        replaced: GPUs that were given another runtime.
        failed_batches: that a failing GPU did not finish, or did not begin.
    """

    name: str
    max_lengths: tuple[int, ...]
    requests: int
    seconds: float
    latencies_s: Floats
    moments: tuple[ClusterSample, ...]
    busy_s: tuple[float, ...]
    demotions: int
    replaced: int
    failed_batches: int

    @property
    def mean_ms(self) -> float:
        """Mean latency; 0 without requests."""
        return float(self.latencies_s.mean()) * 1e3 if len(self.latencies_s) else 0.0

    def percentile_ms(self, percent: float) -> float:
        """A percentile of latency; 0 without requests."""
        return float(np.percentile(self.latencies_s, percent)) * 1e3 if len(self.latencies_s) else 0.0

    def share_over(self, slo_s: float) -> float:
        """Share of the requests that took longer than the SLO."""
        return float((self.latencies_s > slo_s).mean()) if len(self.latencies_s) else 0.0

    @property
    def mean_gpus(self) -> float:
        """GPUs, weighted by time, while requests arrived."""
        return float(np.mean([each.gpus for each in self.moments if each.at <= self.seconds]))

    @property
    def utilisation(self) -> float:
        """Share of the GPU time, until the last answer, in which work was done."""
        return sum(self.busy_s) / sum(each.gpus for each in self.moments)
