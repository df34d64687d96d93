"""Result of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidal.simulator.arlo.latencies import LatencyFigures
from tidal.simulator.requests import Floats


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """State of a cluster at the end of a second.

    Args:
        at: Time in seconds.
        gpus: Number of GPUs.
        instances: GPUs by runtime, including loading ones; all 0 if lanes are not instances of a runtime.
        waiting: Number of waiting queries.
    """

    at: float
    gpus: int
    instances: tuple[int, ...]
    waiting: int


@dataclass(frozen=True)
class ClusterResult(LatencyFigures):
    """Result of one run of one system; every request was answered.

    Args:
        name: Name of the system.
        max_lengths: The runtimes' `max_length` in tokens.
        requests: Number of requests.
        seconds: Duration of the arrivals, in seconds.
        latencies_s: Latencies including overhead in seconds, in the order of the answers, [requests].
        moments: State at the end of each second, until the last answer.
        busy_s: GPU time by runtime, in seconds.
        demotions: Queries that ran on a longer runtime than the shortest that fits.
        replaced: Number of GPUs whose runtime was replaced.
        failed_batches: Batches that a failed GPU did not finish or start.
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
    def mean_gpus(self) -> float:
        """Time-weighted mean number of GPUs while requests arrived."""
        return float(np.mean([each.gpus for each in self.moments if each.at <= self.seconds]))

    @property
    def utilisation(self) -> float:
        """Busy share of the GPU time until the last answer."""
        return sum(self.busy_s) / sum(each.gpus for each in self.moments)
