"""The instance allocation problem of Arlo §3.3 (Eqs. 1 to 7): its inputs, and what an allocation costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tidal.arlo.scheduling.latency import Floats, LatencyCurve, PoissonLatency
from tidal.errors import InvalidArgument

Ints = npt.NDArray[np.int64]

# Demand is rounded to multiples of this (about a millionth of a request), so that sums and differences of demands and
# capacities are exact in floating point and equal overflows compare equal.
_GRAIN = 2.0**-20
_MAX_REQUESTS = 2.0**32


def capacity_within(slo_s: float, service_s: float) -> int:
    """Requests that one instance finishes one after another within the SLO, at least 1 (M_i; Figure 4's CY)."""
    for name, value in (("slo_s", slo_s), ("service_s", service_s)):
        if not 0 < value < math.inf:
            raise InvalidArgument(f"{name} must be a positive, finite number of seconds, got {value}")
    return max(1, math.floor(slo_s / service_s + 1e-9))  # 0.3 / 0.1 must be 3


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """What the offline profiler knows of one runtime.

    Args:
        capacity: requests that an instance finishes within the SLO (M_i).
        mean_latency: mean latency by requests per instance and SLO period (ℒ_i).
    """

    capacity: int
    mean_latency: LatencyCurve

    @classmethod
    def from_service(cls, service_s: float, slo_s: float, horizon_s: float = 120.0) -> RuntimeProfile:
        """The profile of a runtime that takes `service_s` seconds a request, with Poisson arrivals."""
        return cls(capacity_within(slo_s, service_s), PoissonLatency(service_s, slo_s, horizon_s))


@dataclass(frozen=True)
class AllocationProblem:
    """How many of `gpus` instances each runtime should get.

    Args:
        gpus: instances to hand out (G), at least 1.
        runtimes: profiles, ascending by `max_length`.
        demand: mean number of requests in one SLO period by the shortest runtime that fits them (Q_i), as many as
            runtimes; rounded to 2^-20 requests.

    Raises:
        InvalidArgument: an input is out of range.
    """

    gpus: int
    runtimes: tuple[RuntimeProfile, ...]
    demand: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InvalidArgument(f"gpus must be at least 1, got {self.gpus}")
        if not self.runtimes:
            raise InvalidArgument("runtimes must name at least one runtime")
        if len(self.demand) != len(self.runtimes):
            raise InvalidArgument(
                f"demand must have a number for each of the {len(self.runtimes)} runtimes, got {len(self.demand)}"
            )
        for i, runtime in enumerate(self.runtimes):
            if runtime.capacity < 1:
                raise InvalidArgument(f"capacity of runtime {i} must be at least 1 request, got {runtime.capacity}")
        for i, requests in enumerate(self.demand):
            if not 0 <= requests <= _MAX_REQUESTS:  # also refuses NaN
                raise InvalidArgument(f"demand {i} must lie between 0 and 2^32 requests a period, got {requests}")

    @cached_property
    def requests(self) -> Floats:
        """Demand by runtime (Q_i), requests in one SLO period, rounded; shape [runtimes]."""
        requests: Floats = np.round(np.asarray(self.demand, np.float64) / _GRAIN) * _GRAIN
        return requests

    @cached_property
    def capacities(self) -> Floats:
        """Requests that an instance finishes within the SLO (M_i), by runtime; shape [runtimes]."""
        return np.asarray([runtime.capacity for runtime in self.runtimes], np.float64)

    @cached_property
    def least(self) -> Ints:
        """Fewest instances by runtime (Eqs. 3 and 7); shape [runtimes]."""
        least = np.floor_divide(self.requests, self.capacities).astype(np.int64)
        least[-1] = max(least[-1], 1)
        return least

    def scaled(self, share: float) -> AllocationProblem:
        """The same problem for a share of the demand of every length."""
        return AllocationProblem(self.gpus, self.runtimes, tuple((self.requests * share).tolist()))

    def overflow(self, instances: Sequence[int]) -> float:
        """Requests a period that not even the longest runtime finishes within the SLO (Eq. 4, i = I)."""
        left = 0.0
        for count, wanted, capacity in zip(instances, self.requests, self.capacities, strict=True):
            left = max(left + wanted - count * capacity, 0.0)
        return float(left)

    def costs(self, instances: Ints) -> Floats:
        """Objective of Eq. 1, Σ ℒ_i(B_i)·C_i, in seconds of latency summed over the requests of one period.

        Args:
            instances: candidates, shape [candidates, runtimes] (N_i), at least one of the last runtime.

        Returns:
            Shape [candidates].
        """
        left = np.zeros(len(instances))
        total = np.zeros(len(instances))
        for i, counts in enumerate(instances.T):
            cost, left = self.step(i, left, counts)
            total += cost
        return total

    def step(self, i: int, left: Floats, counts: Ints) -> tuple[Floats, Floats]:
        """Cost of runtime `i` and what overflows to the next (Eqs. 4 to 6), for broadcastable arrays.

        Args:
            i: index of the runtime.
            left: requests that overflow from shorter runtimes (R_{i-1}).
            counts: instances of this runtime (N_i).

        Returns:
            Latency summed over its requests in seconds, and R_i in requests (what is beyond the last runtime's
            capacity stays with it, so there 0).
        """
        wanted = left + self.requests[i]
        if i == len(self.runtimes) - 1:
            served = np.broadcast_to(wanted, np.broadcast_shapes(wanted.shape, counts.shape))
        else:
            served = np.minimum(wanted, counts * self.capacities[i])  # C_i
        load = served / np.maximum(counts, 1)  # B_i
        return self.runtimes[i].mean_latency(load) * served, wanted - served
