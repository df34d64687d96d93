"""How long a request takes on an instance by how many requests the instance gets: ℒ of Arlo §3.3."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument

Floats = npt.NDArray[np.float64]


class LatencyCurve(Protocol):
    """Mean latency of a request in seconds, queueing included, by requests an instance gets in one SLO period (ℒ_i).

    The number of requests may be fractional and may lie above the instance's capacity. The latency is finite and
    never falls as the load grows: the solver's proof of optimality rests on that.
    """

    def __call__(self, load: Floats) -> Floats:
        """Latencies in seconds of loads in requests per instance and SLO period, same shape."""


@dataclass(frozen=True, slots=True)
class PoissonLatency:
    """Service time plus the mean wait of Poisson arrivals at one server with constant service time (M/D/1).

    The paper profiles ℒ and leaves open how requests arrive within a period. Requests of many independent clients
    arrive as a Poisson process, and an instance that pads every input to one length always takes the same time, so
    its queue is an M/D/1 queue. Its stationary mean wait, ρt / (2 (1 − ρ)), has no value at utilisation ρ >= 1,
    where Eqs. 3 to 5 may bring an instance. Here the queue starts empty and the load stays for one decision period
    T of the Runtime Scheduler, for which traffic engineering has a closed form (Kimber and Hollis 1979):

        wait = T/4 · ((ρ − 1) + sqrt((ρ − 1)² + 4ρt/T))

    Far below ρ = 1 this is the stationary wait, far above it the half of what the backlog grows to within T. It
    rises with the load and is convex. Were all requests of a period taken to arrive at its start (mean latency
    t (B + 1) / 2), an instance at ρ = 0.99 would look good, though in a steady stream its queue hardly ever empties:
    such allocations put the longer runtimes close to ρ = 1.

    Args:
        service_s: time of one request padded to the runtime's length, seconds (t).
        slo_s: length of the period that loads refer to, seconds.
        horizon_s: how long a load stays, seconds (T).
    """

    service_s: float
    slo_s: float
    horizon_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("service_s", "slo_s", "horizon_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InvalidArgument(f"{name} must be a positive, finite number of seconds, got {value}")

    def __call__(self, load: Floats) -> Floats:
        """Latencies in seconds of loads in requests per instance and SLO period, same shape."""
        busy = load * (self.service_s / self.slo_s)  # ρ
        excess = busy - 1.0
        root = np.sqrt(excess * excess + (4.0 * self.service_s / self.horizon_s) * busy)
        latency: Floats = self.service_s + (self.horizon_s / 4.0) * (excess + root)
        return latency


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """A measured curve: linear between the measured loads, the first latency below them, the last slope above them.

    Args:
        loads: requests per instance and SLO period, ascending, at least two.
        latencies_s: mean latency at each of them, seconds, never falling.
    """

    loads: tuple[float, ...]
    latencies_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.loads) < 2 or len(self.loads) != len(self.latencies_s):
            raise InvalidArgument(
                f"loads and latencies_s must have the same length, at least 2, got {len(self.loads)} and "
                f"{len(self.latencies_s)}"
            )
        if not all(0 <= a < b < math.inf for a, b in itertools.pairwise(self.loads)):
            raise InvalidArgument(f"loads must be ascending, finite and not negative, got {self.loads}")
        if not all(0 < a <= b < math.inf for a, b in itertools.pairwise(self.latencies_s)):
            raise InvalidArgument(f"latencies_s must be positive and finite and must not fall, got {self.latencies_s}")

    def __call__(self, load: Floats) -> Floats:
        """Latencies in seconds of loads in requests per instance and SLO period, same shape."""
        slope = (self.latencies_s[-1] - self.latencies_s[-2]) / (self.loads[-1] - self.loads[-2])
        measured = np.interp(load, self.loads, self.latencies_s)
        latency: Floats = measured + slope * np.maximum(load - self.loads[-1], 0.0)
        return latency
