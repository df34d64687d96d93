"""CPU time of a dispatch and of a simulated request on one core (Arlo Figure 9, §5.2)."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.cluster.simulated.inputs import LARGE, ClusterData
from tidal.arlo.policies import ArloQuery, CongestionRule, PartitionedPolicy
from tidal.simulator.arlo import SystemName, length_history, make_system, simulate

_RUNTIMES = 12
_SLO_S = 0.45
_SPEED_RATE = 250_000
PEEKS = (1, 3, 6, 12)
#: Number of instances, and number of simultaneous requests.
LOADS = ((200, 400), (400, 800), (600, 1200), (800, 1600), (1000, 2000), (1200, 2400))


@dataclass(frozen=True, slots=True)
class DispatchTime:
    """CPU time per request of a burst: the best and the median of several bursts."""

    instances: int
    requests: int
    peek: int
    best_us: float
    median_us: float

    @property
    def burst_ms(self) -> float:
        """CPU time of the best burst in ms."""
        return self.best_us * self.requests / 1e3


def dispatch_times(repeats: int) -> list[DispatchTime]:
    """Time Algorithm 1 for bursts onto half-full instances, so that it peeks at several levels."""
    rng = np.random.default_rng(0)
    latencies = np.linspace(0.0021, 0.011, _RUNTIMES)
    max_lengths = [round(512 * (i + 1) / _RUNTIMES) for i in range(_RUNTIMES)]
    found = []
    for instances, requests in LOADS:
        for peek in PEEKS:
            times = []
            for _ in range(repeats):
                counts = [instances // _RUNTIMES] * _RUNTIMES
                policy = PartitionedPolicy(
                    max_lengths, latencies.tolist(), _SLO_S, counts, rule=CongestionRule(peek=peek)
                )
                for length in rng.integers(1, 513, 10 * instances).tolist():
                    policy.submit(ArloQuery(length, 0.0))
                queries = [
                    ArloQuery(length, 1.0) for length in rng.lognormal(4.6, 0.5, requests).clip(1, 512).astype(int)
                ]
                gc.collect()
                start = time.process_time()
                for query in queries:
                    policy.submit(query)
                times.append((time.process_time() - start) / requests * 1e6)
            found.append(DispatchTime(instances, requests, peek, min(times), statistics.median(times)))
    return found


@dataclass(frozen=True, slots=True)
class SimulationSpeed:
    """Simulated requests per CPU second, including the generation of the requests."""

    requests: int
    best: float
    median: float


def simulation_speed(data: ClusterData, repeats: int) -> SimulationSpeed:
    """Simulate one second of Arlo on 1,000 GPUs at the rate of Table 4, `repeats` times."""
    workload = data.workload(_SPEED_RATE, 1, drift=False)
    history = length_history(workload)
    speeds, requests = [], 0
    for _ in range(repeats):
        system = make_system(SystemName.ARLO, LARGE.times, gpus=1000, slo_s=LARGE.slo_s, history=history)
        gc.collect()
        start = time.process_time()
        requests = simulate(system, workload).requests
        speeds.append(requests / (time.process_time() - start))
    return SimulationSpeed(requests, max(speeds), statistics.median(speeds))
