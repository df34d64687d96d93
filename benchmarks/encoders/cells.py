"""One measurement of a running system: a closed or an open loop, with CPU time and batch sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.encoders.load import LoadResult
from benchmarks.encoders.run import EncoderCell
from benchmarks.encoders.sides import Side
from benchmarks.encoders.workload import Rows, Traffic
from tidal_client.load.arrivals import Times

# Answers of a closed loop per request in flight: fewer are the first wave and little more.
_LEAST_ANSWERS = 8
# Tidal's models publish their metrics every 200 ms.
_PUBLISHED_S = 0.25


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured of every system.

    Attributes:
        traffic: Kind of the requests.
        in_flight: Number of requests in flight; 0: requests arrive at random.
        share: Their rate as a share of the capacity of the best peer; 0: a closed loop.
    """

    traffic: Traffic
    in_flight: int = 0
    share: float = 0.0

    @property
    def name(self) -> str:
        """Name in tables and files."""
        load = f"{self.in_flight} in flight" if self.in_flight else f"Poisson {self.share:.0%}"
        return f"{self.traffic.name}, {load}"


def measure_closed(
    side: Side, requests: Sequence[Rows], *, in_flight: int, seconds: float, warm_s: float
) -> EncoderCell:
    """Measure a closed loop, for longer than `seconds` where answers are slow; see `closed_loop`.

    Args:
        side: Running system.
        requests: Requests, each sent at most once.
        in_flight: Number of requests in flight.
        seconds: Length of the measurement in seconds.
        warm_s: Seconds before it.
    """
    payloads = side.encode(requests)
    watch = _Watch(side)
    least = _LEAST_ANSWERS * in_flight
    return watch.cell(side.closed(payloads, in_flight=in_flight, seconds=seconds, warm_s=warm_s, least=least))


def measure_open(side: Side, requests: Sequence[Rows], times: Times) -> EncoderCell:
    """Measure an open loop.

    Args:
        side: Running system.
        requests: Requests.
        times: Send times in seconds, [requests].
    """
    payloads = side.encode(requests)
    watch = _Watch(side)
    return watch.cell(side.open(payloads, times))


class _Watch:
    """CPU time and batches of a system since its construction."""

    def __init__(self, side: Side) -> None:
        self._side, self._start = side, time.monotonic()
        self._cpu, self._counts = side.cpu_seconds(), side.counts()

    def cell(self, result: LoadResult) -> EncoderCell:
        """Return the measurement.

        Args:
            result: Result of the loop.

        Raises:
            RuntimeError: No request was answered.
        """
        available = (time.monotonic() - self._start) * len(os.sched_getaffinity(0))
        used = self._side.cpu_seconds() - self._cpu
        if not len(result.latencies_ms):
            raise RuntimeError(f"no request was answered: {result.error or 'the measurement was too short'}")
        p50, p99 = np.percentile(result.latencies_ms, (50, 99))
        return EncoderCell(
            result.per_second,
            float(result.latencies_ms.mean()),
            float(p50),
            float(p99),
            result.failed,
            used / available,
            result.client_s / available,
            self._mean_batch(),
        )

    def _mean_batch(self) -> float | None:
        if self._counts is None:
            return None
        time.sleep(_PUBLISHED_S)
        now = self._side.counts()
        assert now is not None
        rows, batches = (after - before for after, before in zip(now, self._counts, strict=True))
        return rows / batches if batches else None
