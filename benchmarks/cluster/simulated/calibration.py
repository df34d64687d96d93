"""Calibration of the simulator for a machine, and simulations with it.

The paper adds one fixed overhead to the profile's latencies, with one GPU per instance (§5.2). Here instances, front,
server and clients share a few cores: a query takes longer while other instances are busy, and threads wake up later.
Calibration runs measure the service time and the overhead of a query alone and under load. For other loads they are
interpolated (or extrapolated a little) linearly, by the utilisation of the instances in the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidal.arlo.policies import CompletionRule, PartitionedPolicy
from tidal.simulator.arlo import ClusterResult, SimulatedSystem, SystemName, simulate
from tidal.simulator.traces import RecordedRequests

# Number of simulations until service times and the load that they depend on are consistent; the first assumes no load.
_PASSES = 12


@dataclass(frozen=True, slots=True)
class Observed:
    """Measurements of calibration runs.

    Args:
        seconds: Duration in seconds.
        busy_s: Seconds in which instances ran queries, by runtime, from the metrics of the front.
        queries: Number of queries that they ran, by runtime.
        latency_s: Mean latency in seconds, from the scheduled time of sending to the answer.
    """

    seconds: float
    busy_s: tuple[float, ...]
    queries: tuple[float, ...]
    latency_s: float

    def __add__(self, other: Observed) -> Observed:
        """Combine the measurements of two runs."""
        mine, others = sum(self.queries), sum(other.queries)
        return Observed(
            self.seconds + other.seconds,
            tuple(a + b for a, b in zip(self.busy_s, other.busy_s, strict=True)),
            tuple(a + b for a, b in zip(self.queries, other.queries, strict=True)),
            (self.latency_s * mine + other.latency_s * others) / (mine + others),
        )

    def service_s(self, runtime: int) -> float | None:
        """Mean service time of a query on a runtime in seconds; None if it ran no query."""
        return self.busy_s[runtime] / self.queries[runtime] if self.queries[runtime] else None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of a partitioned model on a machine.

    Args:
        max_lengths: Lengths of the runtimes in tokens, ascending.
        profile_s: Service time of a query in seconds, by runtime, from the manifest; the policy uses these, as in the
            server.
        instances: Number of instances by runtime.
        slo_s: SLO of the model in seconds.
        lone: Measurements of queries sent one at a time.
        loaded: Measurements of queries with the arrival pattern of the measured ones, at another rate.
        loaded_overhead_s: Mean latency of the loaded queries beyond simulated waiting and execution, in seconds.
    """

    max_lengths: tuple[int, ...]
    profile_s: tuple[float, ...]
    instances: tuple[int, ...]
    slo_s: float
    lone: Observed
    loaded: Observed
    loaded_overhead_s: float = 0.0

    def calibrated(self, traces: Sequence[RecordedRequests]) -> Calibration:
        """Return a copy with the overhead under load that follows from the traces of the loaded runs."""
        service_s = self.service_s(self.others_when_loaded)
        latencies_s = [self._simulate(requests, service_s, 0.0).latencies_s for requests in traces]
        simulated = float(np.concatenate(latencies_s).mean())
        return replace(self, loaded_overhead_s=max(0.0, self.loaded.latency_s - simulated))

    @property
    def overhead_s(self) -> float:
        """Latency of a lone query beyond its execution, in seconds: HTTP, tokenisation, waking threads."""
        return max(0.0, self.lone.latency_s - sum(self.lone.busy_s) / sum(self.lone.queries))

    @property
    def others_when_loaded(self) -> tuple[float, ...]:
        """Mean utilisation of the other instances in the loaded run, by runtime."""
        return others_busy(self.loaded.busy_s, self.instances, self.loaded.seconds)

    def service_s(self, others: Sequence[float]) -> tuple[float, ...]:
        """Return the service time of a query in seconds, by runtime.

        A runtime that a calibration run did not use has the service time of the profile.

        Args:
            others: Utilisation of the other instances, by runtime.
        """
        then = self.others_when_loaded
        times = []
        for runtime, profiled in enumerate(self.profile_s):
            lone, loaded = self.lone.service_s(runtime), self.loaded.service_s(runtime)
            if lone is None or loaded is None or not then[runtime]:
                times.append(profiled)
            else:
                times.append(_between(lone, loaded, others[runtime] / then[runtime]))
        return tuple(times)

    def by_profile(self, requests: RecordedRequests) -> ClusterResult:
        """Simulate a trace with the manifest's profile and the fixed overhead only, as in the paper."""
        return self._simulate(requests, self.profile_s, self.overhead_s)

    def by_calibration(self, requests: RecordedRequests) -> ClusterResult:
        """Simulate a trace with the service times and overheads of the calibration runs."""
        result = self._simulate(requests, self.service_s([0.0] * len(self.instances)), self.overhead_s)
        for _ in range(_PASSES - 1):
            load = sum(result.busy_s) / result.seconds / (sum(self.loaded.busy_s) / self.loaded.seconds)
            overhead_s = _between(self.overhead_s, self.loaded_overhead_s, load)
            others = others_busy(result.busy_s, self.instances, result.seconds)
            result = self._simulate(requests, self.service_s(others), overhead_s)
        return result

    def _simulate(self, requests: RecordedRequests, service_s: Sequence[float], overhead_s: float) -> ClusterResult:
        policy = PartitionedPolicy(self.max_lengths, self.profile_s, self.slo_s, self.instances, rule=CompletionRule())
        system = SimulatedSystem(
            SystemName.EARLIEST, self.max_lengths, policy, self.instances, lambda batch: service_s[batch.runtime]
        )
        return simulate(system, requests, overhead_s=overhead_s)


def _between(lone: float, loaded: float, load: float) -> float:
    """Interpolate from `lone` at load 0 to `loaded` at load 1, and beyond, but not below both: that would be noise."""
    return max(min(lone, loaded), lone + (loaded - lone) * load)


def others_busy(busy_s: Sequence[float], instances: Sequence[int], seconds: float) -> tuple[float, ...]:
    """Return the mean utilisation of the instances other than one of a runtime, by runtime.

    Args:
        busy_s: Seconds in which all instances of each runtime ran queries.
        instances: Number of instances by runtime.
        seconds: Duration in seconds.

    Returns:
        Utilisation by runtime, from 0 to 1; 0 if there is no other instance.
    """
    others = max(1, sum(instances) - 1)
    own = [busy / max(1, count) for busy, count in zip(busy_s, instances, strict=True)]
    return tuple(min(1.0, max(0.0, sum(busy_s) - each) / (others * seconds)) for each in own)
