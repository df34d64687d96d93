"""The instance allocation problem (Arlo §3.3, Eqs. 1 to 7): inputs, and the cost of an allocation."""

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

# Demand is rounded to multiples of this, about a millionth of a request. Sums and differences with capacities are then
# exact in floating point, so equal overflows compare equal.
_GRAIN = 2.0**-20
_MAX_REQUESTS = 2.0**32


def capacity_within(slo_s: float, service_s: float) -> int:
    """Return the requests that one instance finishes sequentially within the SLO, at least 1 (M_i; CY in Figure 4).

    Args:
        slo_s: Latency objective, in seconds.
        service_s: Service time of one request, in seconds.
    """
    for name, value in (("slo_s", slo_s), ("service_s", service_s)):
        if not 0 < value < math.inf:
            raise InvalidArgument(f"{name} must be a positive, finite number of seconds, got {value}")
    return max(1, math.floor(slo_s / service_s + 1e-9))  # 0.3 / 0.1 must be 3


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """Capacity and latency of one runtime, from the offline profiler.

    Args:
        capacity: Requests that an instance finishes within the SLO (M_i).
        mean_latency: Mean latency by requests per instance and SLO period (ℒ_i).
    """

    capacity: int
    mean_latency: LatencyCurve

    @classmethod
    def from_service(cls, service_s: float, slo_s: float, horizon_s: float = 120.0) -> RuntimeProfile:
        """Return the profile of a runtime with constant service time under Poisson arrivals; see `PoissonLatency`."""
        return cls(capacity_within(slo_s, service_s), PoissonLatency(service_s, slo_s, horizon_s))


@dataclass(frozen=True)
class AllocationProblem:
    """Distribution of `gpus` instances among runtimes.

    Args:
        gpus: Number of instances (G), at least 1.
        runtimes: Profiles of the runtimes, ascending by `max_length`.
        demand: Mean number of requests per SLO period, by the shortest runtime that fits them (Q_i), [runtimes];
            rounded to 2^-20 requests.
        longest: Minimum number of instances of the last runtime, from 1 (Eq. 7) to `gpus`.

    Raises:
        InvalidArgument: An input is out of range.
    """

    gpus: int
    runtimes: tuple[RuntimeProfile, ...]
    demand: tuple[float, ...]
    longest: int = 1

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InvalidArgument(f"gpus must be at least 1, got {self.gpus}")
        if not 1 <= self.longest <= self.gpus:
            raise InvalidArgument(f"longest must be between 1 and gpus, {self.gpus}, got {self.longest}")
        if not self.runtimes:
            raise InvalidArgument("runtimes must not be empty")
        if len(self.demand) != len(self.runtimes):
            raise InvalidArgument(
                f"demand must have a number for each of the {len(self.runtimes)} runtimes, got {len(self.demand)}"
            )
        for i, runtime in enumerate(self.runtimes):
            if runtime.capacity < 1:
                raise InvalidArgument(f"capacity of runtime {i} must be at least 1 request, got {runtime.capacity}")
        for i, requests in enumerate(self.demand):
            if not 0 <= requests <= _MAX_REQUESTS:  # also refuses NaN
                raise InvalidArgument(f"demand {i} must be between 0 and 2^32 requests per period, got {requests}")

    @cached_property
    def requests(self) -> Floats:
        """Demand by runtime (Q_i) in requests per SLO period, rounded, [runtimes]."""
        requests: Floats = np.round(np.asarray(self.demand, np.float64) / _GRAIN) * _GRAIN
        return requests

    @cached_property
    def capacities(self) -> Floats:
        """Requests that an instance finishes within the SLO (M_i), [runtimes]."""
        return np.asarray([runtime.capacity for runtime in self.runtimes], np.float64)

    @cached_property
    def least(self) -> Ints:
        """Minimum number of instances by runtime (Eqs. 3 and 7), [runtimes]."""
        least = np.floor_divide(self.requests, self.capacities).astype(np.int64)
        least[-1] = max(least[-1], self.longest)
        return least

    def scaled(self, share: float) -> AllocationProblem:
        """Return the problem with every demand multiplied by `share`."""
        return AllocationProblem(self.gpus, self.runtimes, tuple((self.requests * share).tolist()), self.longest)

    def overflow(self, instances: Sequence[int]) -> float:
        """Return the requests per period that exceed the longest runtime's capacity (Eq. 4, i = I)."""
        left = 0.0
        for count, wanted, capacity in zip(instances, self.requests, self.capacities, strict=True):
            left = max(left + wanted - count * capacity, 0.0)
        return float(left)

    def costs(self, instances: Ints) -> Floats:
        """Return the objective of Eq. 1, Σ ℒ_i(B_i)·C_i: latency summed over the requests of one period, in seconds.

        Args:
            instances: Candidates [candidates, runtimes] (N_i), at least one instance of the last runtime each.

        Returns:
            Costs [candidates].
        """
        left = np.zeros(len(instances))
        total = np.zeros(len(instances))
        for i, counts in enumerate(instances.T):
            cost, left = self.step(i, left, counts)
            total += cost
        return total

    def step(self, i: int, left: Floats, counts: Ints) -> tuple[Floats, Floats]:
        """Return the cost of runtime `i` and its overflow (Eqs. 4 to 6), for broadcastable arrays.

        Args:
            i: Index of the runtime.
            left: Requests that overflow from shorter runtimes (R_{i-1}).
            counts: Instances of this runtime (N_i).

        Returns:
            Latency summed over its requests in seconds, and R_i in requests; 0 for the last runtime, which keeps all.
        """
        wanted = left + self.requests[i]
        if i == len(self.runtimes) - 1:
            served = np.broadcast_to(wanted, np.broadcast_shapes(wanted.shape, counts.shape))
        else:
            served = np.minimum(wanted, counts * self.capacities[i])  # C_i
        load = served / np.maximum(counts, 1)  # B_i
        return self.runtimes[i].mean_latency(load) * served, wanted - served
