"""What the simulator has to know of a machine before it can say what a server does on it, and what it says then.

The paper adds one fixed overhead to the profile's latencies, on a GPU for each instance (§5.2). Here instances, front,
server and clients share a few cores: a query takes longer while the other instances run something, and threads wake up
later. What a query takes alone and under load is measured in calibration runs, and what lies between, or a little
beyond, is linear in how busy the instances are, which the simulation itself says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidal.arlo.policies import PartitionedPolicy
from tidal.simulator.arlo import ClusterResult, SimulatedSystem, SystemName, simulate
from tidal.simulator.traces import RecordedRequests

# Simulations after which service times and the load that they come from fit each other; the first assumes no load.
_PASSES = 12


@dataclass(frozen=True, slots=True)
class Observed:
    """Traffic of calibration runs.

    Args:
        seconds: how long it lasted.
        busy_s: seconds in which instances ran queries, by runtime, as the front's metrics have it.
        queries: that they ran, by runtime.
        latency_s: mean latency, from the scheduled time of sending to the answer.
    """

    seconds: float
    busy_s: tuple[float, ...]
    queries: tuple[float, ...]
    latency_s: float

    def __add__(self, other: Observed) -> Observed:
        """Both together."""
        mine, others = sum(self.queries), sum(other.queries)
        return Observed(
            self.seconds + other.seconds,
            tuple(a + b for a, b in zip(self.busy_s, other.busy_s, strict=True)),
            tuple(a + b for a, b in zip(self.queries, other.queries, strict=True)),
            (self.latency_s * mine + other.latency_s * others) / (mine + others),
        )

    def service_s(self, runtime: int) -> float | None:
        """Mean seconds that an instance of the runtime took for a query; None where it had none."""
        return self.busy_s[runtime] / self.queries[runtime] if self.queries[runtime] else None


@dataclass(frozen=True, slots=True)
class Calibration:
    """A partitioned model on a machine.

    Args:
        max_lengths: of its runtimes in tokens, ascending.
        profile_s: seconds of a query by runtime, as the manifest has them; the policy decides by these, as it does in
            the server.
        instances: by runtime.
        slo_s: the model's, seconds.
        lone: queries that came when nothing else was under way.
        loaded: queries that came as the measured ones do, at another rate.
        loaded_overhead_s: what the mean latency of these had beside the simulated waiting and execution, seconds.
    """

    max_lengths: tuple[int, ...]
    profile_s: tuple[float, ...]
    instances: tuple[int, ...]
    slo_s: float
    lone: Observed
    loaded: Observed
    loaded_overhead_s: float = 0.0

    def calibrated(self, traces: Sequence[RecordedRequests]) -> Calibration:
        """The same, with the overhead under load that follows from the traces of the loaded runs."""
        service_s = self.service_s(self.others_when_loaded)
        latencies_s = [self._simulate(requests, service_s, 0.0).latencies_s for requests in traces]
        simulated = float(np.concatenate(latencies_s).mean())
        return replace(self, loaded_overhead_s=max(0.0, self.loaded.latency_s - simulated))

    @property
    def overhead_s(self) -> float:
        """What a lone query's latency has beside its execution, seconds: HTTP, tokenisation, threads that wake up."""
        return max(0.0, self.lone.latency_s - sum(self.lone.busy_s) / sum(self.lone.queries))

    @property
    def others_when_loaded(self) -> tuple[float, ...]:
        """Share of the time in which the other instances were busy in the loaded run, by runtime."""
        return others_busy(self.loaded.busy_s, self.instances, self.loaded.seconds)

    def service_s(self, others: Sequence[float]) -> tuple[float, ...]:
        """Seconds of a query by runtime, where the other instances are busy for these shares of the time.

        The profile's for a runtime that one of the calibration runs did not use.
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
        """What the simulator says of a trace by the manifest's profile and the overhead alone, as in the paper."""
        return self._simulate(requests, self.profile_s, self.overhead_s)

    def by_calibration(self, requests: RecordedRequests) -> ClusterResult:
        """What it says by the service times and the overheads of the calibration runs."""
        result = self._simulate(requests, self.service_s([0.0] * len(self.instances)), self.overhead_s)
        for _ in range(_PASSES - 1):
            load = sum(result.busy_s) / result.seconds / (sum(self.loaded.busy_s) / self.loaded.seconds)
            overhead_s = _between(self.overhead_s, self.loaded_overhead_s, load)
            others = others_busy(result.busy_s, self.instances, result.seconds)
            result = self._simulate(requests, self.service_s(others), overhead_s)
        return result

    def _simulate(self, requests: RecordedRequests, service_s: Sequence[float], overhead_s: float) -> ClusterResult:
        policy = PartitionedPolicy(self.max_lengths, self.profile_s, self.slo_s, self.instances)
        system = SimulatedSystem(
            SystemName.ARLO, self.max_lengths, policy, self.instances, lambda batch: service_s[batch.runtime]
        )
        return simulate(system, requests, overhead_s=overhead_s)


def _between(lone: float, loaded: float, load: float) -> float:
    """Linear from `lone` at no load to `loaded` at 1, and beyond; never below both, which only noise would say."""
    return max(min(lone, loaded), lone + (loaded - lone) * load)


def others_busy(busy_s: Sequence[float], instances: Sequence[int], seconds: float) -> tuple[float, ...]:
    """Share of the time in which the instances beside one of a runtime ran something, on their mean, by runtime.

    Args:
        busy_s: seconds in which all instances of each runtime ran queries.
        instances: by runtime.
        seconds: over which that was.

    Returns:
        By runtime; 0 where there is no other instance.
    """
    others = max(1, sum(instances) - 1)
    own = [busy / max(1, count) for busy, count in zip(busy_s, instances, strict=True)]
    return tuple(min(1.0, max(0.0, sum(busy_s) - each) / (others * seconds)) for each in own)
