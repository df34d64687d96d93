"""Scaling rules of the simulated systems."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tidal.arlo.scheduling import Autoscaler, InstanceLoad, Scaling, least_busy
from tidal.errors import InvalidArgument
from tidal.simulator.requests import Floats

_CALM_S = 60
_RECENT_S = 5


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """Observation of the previous second.

    Args:
        gpus: Number of GPUs, including loading ones.
        instances: Instances that serve, by runtime.
        latencies_s: Latencies of the answered queries, in seconds.
        busy_s: GPU time of the batches started, by runtime, in seconds.
    """

    gpus: int
    instances: Sequence[int]
    latencies_s: Floats
    busy_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class ScalingChange:
    """Add a GPU to a runtime, or release one from it."""

    scaling: Scaling
    runtime: int


class Scaler(Protocol):
    """Decides once per second."""

    def decide(self, now: float, seen: ClusterObservation) -> ScalingChange | None:
        """Return the change of the number of GPUs, or None."""


class TargetTracking:
    """Arlo's rule: the 98th percentile of latency, with the controller's `Autoscaler` (§4)."""

    def __init__(self, slo_s: float, *, min_gpus: int, max_gpus: int) -> None:
        self._autoscaler = Autoscaler(slo_s, min_gpus=min_gpus, max_gpus=max_gpus)
        self._busy = _BusyMinute()

    def decide(self, now: float, seen: ClusterObservation) -> ScalingChange | None:
        """Return the change of the number of GPUs, or None."""
        self._busy.add(seen)
        scaler, latencies = self._autoscaler, seen.latencies_s
        slow, critical = (int(np.count_nonzero(latencies >= limit)) for limit in (scaler.in_s, scaler.out_s))
        scaler.observe(len(latencies), slow, critical)
        scaling = scaler.decide(now, seen.gpus)
        if scaling is Scaling.ADD:
            return ScalingChange(scaling, len(seen.instances) - 1)
        return self._busy.release(seen) if scaling is Scaling.RELEASE else None


class Headroom:
    """INFaaS's rule: keep a share of the GPU time free. The paper only states that it keeps headroom.

    Adds a GPU to the busiest runtime when less than `headroom` of the GPU time of the last 5 seconds was free. Releases
    the least busy GPU when one GPU less would have left that headroom over the last minute. The windows are those of
    Arlo's rule, so that only the observed quantity differs.

    Args:
        headroom: Share of GPU time to keep free, between 0 and 1.
        min_gpus: Minimum number of GPUs.
        max_gpus: Maximum number of GPUs.
    """

    def __init__(self, headroom: float, *, min_gpus: int, max_gpus: int) -> None:
        if not 0 < headroom < 1:
            raise InvalidArgument(f"headroom must be between 0 and 1, got {headroom:g}")
        if not 1 <= min_gpus <= max_gpus:
            raise InvalidArgument(
                f"min_gpus must be between 1 and max_gpus, got min_gpus {min_gpus} and max_gpus {max_gpus}"
            )
        self._max_used = 1 - headroom
        self._min_gpus, self._max_gpus = min_gpus, max_gpus
        self._busy = _BusyMinute()
        self._quiet_until = 0.0

    def decide(self, now: float, seen: ClusterObservation) -> ScalingChange | None:
        """Return the change of the number of GPUs, or None."""
        self._busy.add(seen)
        recent = self._busy.mean(_RECENT_S)
        if recent is not None and now >= self._quiet_until and sum(recent) > self._max_used * seen.gpus:
            if seen.gpus >= self._max_gpus:
                return None
            self._quiet_until = now + _RECENT_S
            each = [used / count if count else -math.inf for used, count in zip(recent, seen.instances, strict=True)]
            self._busy.clear()
            return ScalingChange(Scaling.ADD, each.index(max(each)))
        minute = self._busy.mean(_CALM_S)
        if minute is None or seen.gpus <= self._min_gpus or sum(minute) > self._max_used * (seen.gpus - 1):
            return None
        return self._busy.release(seen)


class _BusyMinute:
    """GPU time used in each of the last 60 seconds, by runtime, in seconds."""

    def __init__(self) -> None:
        self._seconds: deque[Sequence[float]] = deque(maxlen=_CALM_S)

    def add(self, seen: ClusterObservation) -> None:
        self._seconds.append(seen.busy_s)

    def clear(self) -> None:
        self._seconds.clear()

    def mean(self, seconds: int) -> list[float] | None:
        """Return the mean GPU time per second over the last `seconds` by runtime; None if fewer have passed."""
        if len(self._seconds) < seconds:
            return None
        recent = list(self._seconds)[-seconds:]
        return [sum(column) / seconds for column in zip(*recent, strict=True)]

    def release(self, seen: ClusterObservation) -> ScalingChange | None:
        """Release an instance of the runtime with the least busy instances, never the last one of the longest."""
        used = self.mean(len(self._seconds)) or [0.0] * len(seen.instances)
        loads = [
            InstanceLoad(lane, runtime, used[runtime] / count)
            for runtime, count in enumerate(seen.instances)
            for lane in range(count)
        ]
        chosen = least_busy(loads, len(seen.instances) - 1)
        if chosen is None:
            return None
        self.clear()
        return ScalingChange(Scaling.RELEASE, chosen.runtime)
