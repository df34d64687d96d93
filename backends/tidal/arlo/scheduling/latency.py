"""Latency of a request as a function of the load of its instance (ℒ of Arlo §3.3)."""

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
    """Mean latency of a request including queueing, in seconds, by requests per instance and SLO period (ℒ_i).

    The load may be fractional and may exceed the instance's capacity. The latency is finite and does not fall as the
    load grows, which the solver's optimality relies on.
    """

    def __call__(self, load: Floats) -> Floats:
        """Return latencies in seconds for loads in requests per instance and SLO period, of the same shape."""


@dataclass(frozen=True, slots=True)
class PoissonLatency:
    """Service time plus the mean wait of Poisson arrivals at one server with constant service time (M/D/1).

    The paper profiles ℒ and does not specify how requests arrive within a period. Requests of many independent clients
    arrive as a Poisson process, and an instance that pads every input to one length has constant service time, so its
    queue is M/D/1. The stationary mean wait, ρt / (2 (1 − ρ)), is undefined at utilisation ρ >= 1, which Eqs. 3 to 5
    allow. Here the queue starts empty and the load lasts for one decision period T of the Runtime Scheduler, for which
    there is a closed form (Kimber and Hollis 1979):

        wait = T/4 · ((ρ − 1) + sqrt((ρ − 1)² + 4ρt/T))

    Far below ρ = 1 this is the stationary wait, far above it half of the backlog's growth within T. It increases with
    the load and is convex. The alternative, that all requests arrive at the start of a period (mean latency
    t (B + 1) / 2), underestimates the wait at ρ near 1, and would load the longer runtimes to ρ close to 1.

    Args:
        service_s: Service time of one request padded to the runtime's length, in seconds (t).
        slo_s: Period that loads refer to, in seconds.
        horizon_s: Duration of a load, in seconds (T).
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
        """Return latencies in seconds for loads in requests per instance and SLO period, of the same shape."""
        busy = load * (self.service_s / self.slo_s)  # ρ
        excess = busy - 1.0
        root = np.sqrt(excess * excess + (4.0 * self.service_s / self.horizon_s) * busy)
        latency: Floats = self.service_s + (self.horizon_s / 4.0) * (excess + root)
        return latency


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """A measured curve: linear interpolation, constant below the first load, the last slope above the last load.

    Args:
        loads: Requests per instance and SLO period, ascending, at least two.
        latencies_s: Mean latency at each load in seconds, not falling.
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
        """Return latencies in seconds for loads in requests per instance and SLO period, of the same shape."""
        slope = (self.latencies_s[-1] - self.latencies_s[-2]) / (self.loads[-1] - self.loads[-2])
        measured = np.interp(load, self.loads, self.latencies_s)
        latency: Floats = measured + slope * np.maximum(load - self.loads[-1], 0.0)
        return latency
