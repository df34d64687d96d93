"""Loads: queries of the same lengths at the same times for all systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.cluster.simulated.inputs import ClusterData
from tidal_client.load.arrivals import Times, poisson

# Minute of the trace from which lengths are taken, and the queries per second and seconds of it.
_MINUTE, _RATE, _SECONDS = 640, 2000, 20


@dataclass(frozen=True)
class Load:
    """Queries of one measurement.

    Attributes:
        lengths: Lengths of the queries in tokens; a closed loop sends as many as it can.
        seconds: Length in seconds.
        times: Arrival times in seconds; None: a closed loop.
        in_flight: Queries in flight of a closed loop.
        warm_s: Seconds before a closed loop is measured.
    """

    lengths: Sequence[int]
    seconds: float
    times: Times | None = None
    in_flight: int = 0
    warm_s: float = 0.0


@dataclass(frozen=True)
class Loads:
    """Makes loads.

    Attributes:
        data: Lengths of queries.
    """

    data: ClusterData

    def closed(self, *, in_flight: int, seconds: float, warm_s: float, seed: int) -> Load:
        """Return a closed loop.

        Args:
            in_flight: Number of queries in flight.
            seconds: Length of the measurement in seconds.
            warm_s: Seconds before it.
            seed: Seed of the lengths.
        """
        return Load(self._from(seed, len(self._lengths)), seconds, in_flight=in_flight, warm_s=warm_s)

    def poisson(self, rate: float, *, seconds: float, seed: int) -> Load:
        """Return Poisson arrivals.

        Args:
            rate: Queries per second.
            seconds: Length in seconds.
            seed: Seed of arrivals and lengths.
        """
        times = poisson(rate, seconds=seconds, seed=seed)
        return Load(self._from(seed, len(times)), seconds, times)

    def _from(self, seed: int, count: int) -> list[int]:
        """Return lengths, from a place on that depends on the seed."""
        first = int(np.random.default_rng(seed).integers(len(self._lengths)))
        found: list[int] = np.roll(self._lengths, -first)[:count].tolist()
        return found

    @cached_property
    def _lengths(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        found = self.data.workload(_RATE, _SECONDS, minute=_MINUTE, seed=_MINUTE)
        return np.concatenate([each.lengths for each in found]).astype(np.int64)
