"""Systems to simulate: Arlo, its baselines and its ablations (Arlo §5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidal.arlo.policies import (
    ArloBatch,
    CompletionRule,
    CongestionRule,
    PartitionedPolicy,
    PlacementPolicy,
    PolymorphicPolicy,
)
from tidal.arlo.scheduling import (
    MIN_GAIN,
    AllocationProblem,
    RuntimeProfile,
    demand_by_runtime,
    reallocate,
    start_allocation,
)
from tidal.errors import InvalidArgument
from tidal.profiles import LatencyProfile
from tidal.simulator.arlo.cluster import Seconds
from tidal.simulator.arlo.dispatch import BinPacking, LeastLoaded, LeastPadding
from tidal.simulator.arlo.scaling import Headroom, Scaler, TargetTracking
from tidal.simulator.arlo.service_times import ServiceTimes
from tidal.simulator.arlo.workload import LengthHistory


class SystemName(StrEnum):
    """Names of the systems."""

    ARLO = "arlo"
    EARLIEST = "earliest"
    ST = "st"
    DT = "dt"
    INFAAS = "infaas"
    EVEN = "even"
    GLOBAL = "global"
    ILB = "ilb"
    IG = "ig"
    POLYMORPHIC = "polymorphic"


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    """Bounds of autoscaling, and the share of GPU time that baselines keep free."""

    min_gpus: int
    max_gpus: int
    headroom: float = 0.05


class PeriodicReallocation:
    """The Runtime Scheduler's periodic decision, with the controller's rule (§3.3).

    Args:
        times: Latencies of the runtimes.
        slo_s: Latency objective, in seconds.
        period_s: Time between decisions, in seconds.
        min_gain: Share of the mean latency that a change must save.
    """

    def __init__(self, times: ServiceTimes, slo_s: float, period_s: float, min_gain: float) -> None:
        if not 1 <= period_s < math.inf:
            raise InvalidArgument(f"the allocation period must be at least 1 s, got {period_s:g}")
        if not 0 <= min_gain < 1:
            raise InvalidArgument(f"the minimum gain must be at least 0 and less than 1, got {min_gain:g}")
        self.period_s = period_s
        self._max_lengths = times.max_lengths
        self._slo_s = slo_s
        self._min_gain = min_gain
        self.profiles = tuple(RuntimeProfile.from_service(each, slo_s, period_s) for each in times.static_s)

    def demand(self, history: LengthHistory) -> tuple[float, ...]:
        """Return the mean number of requests per SLO period by runtime (Q_i)."""
        return demand_by_runtime(history.by_length, self._max_lengths, observed_s=history.seconds, slo_s=self._slo_s)

    def wanted(self, present: Sequence[int], history: LengthHistory) -> tuple[int, ...]:
        """Return the instances by runtime for observed requests; the present ones if the gain is too small."""
        problem = AllocationProblem(sum(present), self.profiles, self.demand(history))
        found = reallocate(problem, present, self._min_gain)
        return tuple(present) if found is None else found.after


@dataclass(frozen=True)
class SimulatedSystem:
    """The components of a simulated system, created for one run.

    Args:
        name: Name of the system.
        max_lengths: The runtimes' `max_length` in tokens.
        policy: Empty policy with `instances`.
        instances: Initial instances by runtime; None: lanes are not instances of a runtime.
        seconds: Returns the duration of a batch.
        reallocation: Periodic reallocation; None: the allocation is fixed.
        scaler: Scaling rule; None: the number of GPUs is fixed.
    """

    name: SystemName
    max_lengths: tuple[int, ...]
    policy: PlacementPolicy
    instances: tuple[int, ...] | None
    seconds: Seconds
    reallocation: PeriodicReallocation | None = None
    scaler: Scaler | None = None


def make_system(
    name: SystemName,
    times: ServiceTimes,
    *,
    gpus: int,
    slo_s: float,
    history: LengthHistory | None = None,
    scale: ScalingBounds | None = None,
    period_s: float = 120.0,
    min_gain: float = MIN_GAIN,
    threshold: float = 0.85,
    decay: float = 0.9,
    peek: int = 6,
    fill: float = 0.05,
) -> SimulatedSystem:
    """Create a system.

    Args:
        name: Name of the system.
        times: Latencies of the runtimes.
        gpus: Initial number of GPUs.
        slo_s: Latency objective, in seconds.
        history: Past requests for the initial allocation; None: an even one. Unused by `even`, `infaas`, `st` and `dt`.
        scale: Bounds of autoscaling; None: a fixed number of GPUs.
        period_s: Time between reallocations, in seconds.
        min_gain: Share of the mean latency that a reallocation must save; the paper has no such minimum.
        threshold: λ of Algorithm 1.
        decay: α of Algorithm 1.
        peek: L of Algorithm 1.
        fill: Share of an instance's capacity that INFaaS uses.

    Raises:
        InvalidArgument: An input is out of range, or `times` lacks data that the system requires.
    """
    if gpus < 1:
        raise InvalidArgument(f"gpus must be at least 1, got {gpus}")
    if not 0 < slo_s < math.inf:
        raise InvalidArgument(f"the SLO must be a positive, finite number of seconds, got {slo_s:g}")
    if name is SystemName.POLYMORPHIC:
        return _polymorphic(times, gpus, scale)
    if name in (SystemName.ST, SystemName.DT):
        return _one_runtime(name, times, gpus, slo_s, scale)
    arguments = (times.max_lengths, times.static_s, slo_s)
    reallocation = PeriodicReallocation(times, slo_s, period_s, min_gain)
    demand = None
    if history is not None and name not in (SystemName.EVEN, SystemName.INFAAS):
        demand = reallocation.demand(history)
    instances = start_allocation(gpus, reallocation.profiles, demand)
    policy: PartitionedPolicy
    scaler: Scaler | None = None
    if name is SystemName.INFAAS:
        policy = BinPacking(*arguments, instances, fill=fill)
        scaler = _headroom(scale)
    else:
        dispatch = {SystemName.ILB: LeastPadding, SystemName.IG: LeastLoaded}.get(name, PartitionedPolicy)
        rule = CompletionRule() if name is SystemName.EARLIEST else CongestionRule(threshold, decay, peek)
        policy = dispatch(*arguments, instances, rule=rule)
        scaler = None if scale is None else TargetTracking(slo_s, min_gpus=scale.min_gpus, max_gpus=scale.max_gpus)
    static = times.static_s
    return SimulatedSystem(
        name,
        times.max_lengths,
        policy,
        instances,
        lambda batch: static[batch.runtime],
        None if name in (SystemName.EVEN, SystemName.GLOBAL, SystemName.INFAAS) else reallocation,
        scaler,
    )


def _headroom(scale: ScalingBounds | None) -> Headroom | None:
    return None if scale is None else Headroom(scale.headroom, min_gpus=scale.min_gpus, max_gpus=scale.max_gpus)


def _one_runtime(
    name: SystemName, times: ServiceTimes, gpus: int, slo_s: float, scale: ScalingBounds | None
) -> SimulatedSystem:
    """Create ST or DT: one runtime for all lengths, padded or with dynamic shapes; least-loaded dispatch."""
    seconds: Seconds
    longest_s = times.static_s[-1]
    if name is SystemName.ST:

        def seconds(batch: ArloBatch) -> float:
            return longest_s
    else:
        if times.dynamic_s is None:
            raise InvalidArgument("dt requires latencies of dynamic shapes: a table with the column dynamic_ms")
        by_length = times.dynamic_s
        longest_s = by_length[-1]

        def seconds(batch: ArloBatch) -> float:
            return by_length[batch.queries[0].length]

    policy = LeastPadding([times.longest], [longest_s], slo_s, [gpus])
    scaler = _headroom(scale)
    return SimulatedSystem(name, (times.longest,), policy, (gpus,), seconds, None, scaler)


def _polymorphic(times: ServiceTimes, gpus: int, scale: ScalingBounds | None) -> SimulatedSystem:
    """Create polymorphic placement: every GPU holds all runtimes; batches up to the measured sizes."""
    if scale is not None:
        raise InvalidArgument("polymorphic placement has no instances to scale: omit autoscaling")
    profile = times.profile
    if profile is None:
        rows = tuple((each * 1e3,) for each in times.static_s)
        profile = LatencyProfile(lengths=times.max_lengths, batches=(1,), median_ms=rows, p95_ms=rows, threads=1)
    profile = profile.model_copy(update={"concurrency": gpus})
    policy = PolymorphicPolicy(
        times.max_lengths, profile, static_upto=times.max_lengths[-1], max_batch=profile.max_batch
    )
    table: list[list[float]] = (profile.table_ms / 1e3).tolist()
    padded: Sequence[int] = times.max_lengths
    return SimulatedSystem(
        SystemName.POLYMORPHIC,
        times.max_lengths,
        policy,
        None,
        lambda batch: table[padded[batch.runtime]][len(batch.queries)],
    )
