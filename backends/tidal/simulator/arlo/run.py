"""A complete run: requests arrive, and reallocation and scaling decide once per second."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.scheduling import Scaling
from tidal.errors import InvalidArgument
from tidal.simulator.arlo.cluster import Cluster
from tidal.simulator.arlo.deployment import Deployment
from tidal.simulator.arlo.result import ClusterResult, ClusterSample
from tidal.simulator.arlo.scaling import ClusterObservation, ScalingChange
from tidal.simulator.arlo.systems import SimulatedSystem
from tidal.simulator.arlo.workload import LengthHistory
from tidal.simulator.requests import Floats, Ints, RequestsInSecond, RequestSource

#: Overhead per query for network and copies to and from the GPU, in seconds (Arlo §5.2).
OVERHEAD_S = 0.0008


@dataclass(frozen=True, slots=True)
class GpuFailures:
    """GPU failures with exponentially distributed times between them.

    Args:
        every_s: Mean time between failures of one GPU, in seconds.
        repair_s: Repair time, in seconds.
        seed: Seed; equal seeds give equal failures.
    """

    every_s: float
    repair_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("mean time between failures", self.every_s), ("time to repair", self.repair_s)):
            if not 0 < value < math.inf:
                raise InvalidArgument(f"{name} must be a positive, finite number of seconds, got {value:g}")


def simulate(
    system: SimulatedSystem,
    workload: RequestSource,
    *,
    overhead_s: float = OVERHEAD_S,
    replacement_s: float = 1.0,
    replacement_batch: int | None = None,
    failures: GpuFailures | None = None,
    on_second: Callable[[float], None] | None = None,
) -> ClusterResult:
    """Run a system until every request is answered.

    Args:
        system: System created for this run.
        workload: Requests that arrive.
        overhead_s: Time added to every latency in seconds; it does not occupy a GPU.
        replacement_s: Time that a GPU takes to load a runtime, in seconds.
        replacement_batch: Number of GPUs to replace at a time; None: as the controller does.
        failures: GPU failures; None: GPUs never fail.
        on_second: Called with the virtual time after each second.

    Raises:
        InvalidArgument: An input is out of range, or the system does not support it.
    """
    if not 0 <= overhead_s < math.inf:
        raise InvalidArgument(f"the overhead per query must be at least 0 s, got {overhead_s:g}")
    run = _Run(system, workload, overhead_s, replacement_s, replacement_batch, failures)
    for second in itertools.chain(workload, run.silence()):
        run.second(second)
        if on_second is not None:
            on_second(run.now)
    return run.result()


class _Run:
    def __init__(
        self,
        system: SimulatedSystem,
        workload: RequestSource,
        overhead_s: float,
        replacement_s: float,
        replacement_batch: int | None,
        failures: GpuFailures | None,
    ) -> None:
        self._system = system
        self._workload = workload
        self._overhead_s = overhead_s
        self._cluster = Cluster(system.policy, system.seconds, len(system.max_lengths))
        self._deployment: Deployment | None = None
        if isinstance(system.policy, PartitionedPolicy) and system.instances is not None:
            self._deployment = Deployment(
                system.policy, system.instances, delay_s=replacement_s, batch_size=replacement_batch
            )
        elif failures is not None:
            raise InvalidArgument("GPU failures are not supported with polymorphic placement: omit them")
        self._failures = failures
        self._rng = np.random.default_rng(0 if failures is None else failures.seed)
        self._seen = np.zeros(workload.longest + 1, np.int64)
        self._seen_since = 0.0
        self._latencies: list[Floats] = []
        self._moments: list[ClusterSample] = []
        self._busy = [0.0] * len(system.max_lengths)
        self._requests = 0

    @property
    def now(self) -> float:
        return self._cluster.now

    def silence(self) -> Iterable[RequestsInSecond]:
        """Yield seconds without arrivals until every request is answered."""
        start = self._workload.seconds
        while len(self._system.policy) or self._cluster.running:
            yield RequestsInSecond(float(start), np.empty(0), np.empty(0, np.int64))
            start += 1

    def second(self, second: RequestsInSecond) -> None:
        end = second.start + 1.0
        times, lengths = second.times.tolist(), second.lengths.tolist()
        for at, event in self._events(second.start, end):
            cut = int(np.searchsorted(second.times[len(second.times) - len(times) :], at))
            self._cluster.advance(times[:cut], lengths[:cut], at)
            times, lengths = times[cut:], lengths[cut:]
            event()
        self._cluster.advance(times, lengths, end)
        self._note(second.lengths)
        self._decide(end)

    def result(self) -> ClusterResult:
        policy = self._system.policy
        return ClusterResult(
            name=self._system.name.value,
            max_lengths=self._system.max_lengths,
            requests=self._requests,
            seconds=float(self._workload.seconds),
            latencies_s=np.concatenate(self._latencies) if self._latencies else np.empty(0),
            moments=tuple(self._moments),
            busy_s=tuple(self._cluster.busy),
            demotions=policy.demotions if isinstance(policy, PartitionedPolicy) else 0,
            replaced=self._deployment.replaced if self._deployment else 0,
            failed_batches=self._cluster.failed_batches,
        )

    def _events(self, start: float, end: float) -> Iterable[tuple[float, Callable[[], None]]]:
        """Yield times and actions of completed loads and GPU failures within a second, in order."""
        failing = self._failing(start, end)
        while True:
            loaded = self._deployment.next_change if self._deployment else math.inf
            failure = failing[0] if failing else math.inf
            at = max(min(loaded, failure), start)
            if at >= end:
                return
            if loaded <= failure:
                yield at, self._loaded
            else:
                failing.pop(0)
                yield at, self._fail

    def _failing(self, start: float, end: float) -> list[float]:
        if self._failures is None or self._deployment is None:
            return []
        number = self._rng.poisson(sum(self._deployment.instances) * (end - start) / self._failures.every_s)
        times: list[float] = np.sort(self._rng.uniform(start, end, number)).tolist()
        return times

    def _loaded(self) -> None:
        assert self._deployment is not None
        self._deployment.update(self._cluster.now)
        self._cluster.start()

    def _fail(self) -> None:
        assert self._failures is not None
        assert isinstance(self._system.policy, PartitionedPolicy)
        lanes = list(self._system.policy.lanes)
        self._cluster.fail(lanes[int(self._rng.integers(len(lanes)))], self._failures.repair_s)

    def _note(self, lengths: Ints) -> None:
        """Record the arrivals and answers of the past second."""
        self._requests += len(lengths)
        if len(lengths):
            self._seen += np.bincount(lengths, minlength=len(self._seen))
        self._latencies.append(np.asarray(self._cluster.latencies) + self._overhead_s)
        self._cluster.latencies.clear()

    def _decide(self, now: float) -> None:
        deployment, system = self._deployment, self._system
        busy = [after - before for after, before in zip(self._cluster.busy, self._busy, strict=True)]
        self._busy = list(self._cluster.busy)
        held = [0] * len(system.max_lengths)
        gpus = system.policy.max_concurrency
        if deployment is not None:
            held, gpus = deployment.held, deployment.gpus
        self._moments.append(ClusterSample(now, gpus, tuple(held), len(system.policy)))
        if deployment is None:
            return
        if system.scaler is not None:
            seen = ClusterObservation(gpus, tuple(deployment.instances), self._latencies[-1], busy)
            self._scale(now, deployment, system.scaler.decide(now, seen))
        reallocation = system.reallocation
        if reallocation is not None and now - self._seen_since >= reallocation.period_s:
            history = LengthHistory(
                {int(n): int(self._seen[n]) for n in np.flatnonzero(self._seen)}, now - self._seen_since
            )
            deployment.replace(now, reallocation.wanted(deployment.held, history))
            self._seen[:] = 0
            self._seen_since = now
        self._cluster.start()

    def _scale(self, now: float, deployment: Deployment, change: ScalingChange | None) -> None:
        if change is None:
            return
        if change.scaling is Scaling.ADD:
            deployment.add(now, change.runtime)
        elif not deployment.changing:  # replacements in progress rely on the current GPUs
            deployment.release(change.runtime)
