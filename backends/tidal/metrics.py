"""Metrics aggregated in the process: cheap to record from any thread, published by whoever serves them."""

from __future__ import annotations

import bisect
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

# Seconds, from a fraction of a short query's time to the default client timeout.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One time series as it stands: Prometheus family, labels beyond the model's own, value."""

    family: str
    help: str
    kind: Literal["counter", "gauge"]
    labels: tuple[tuple[str, str], ...]
    value: float


class Counter:
    """A number that only grows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, not negative."""
        with self._lock:
            self.value += amount


class Gauge:
    """A number that goes up and down."""

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


class Histogram:
    """Counts of observations by upper bound, with their sum."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self.buckets = tuple(buckets)
        self.counts = [0] * (len(self.buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        index = bisect.bisect_left(self.buckets, value)
        with self._lock:
            self.counts[index] += 1
            self.sum += value

    def cumulative(self) -> tuple[list[tuple[str, int]], int, float]:
        """(`le` bound, observations up to it) for every bucket, then their number and sum."""
        with self._lock:
            counts, total = list(self.counts), self.sum
        rows, running = [], 0
        for bound, count in zip((*map(_bound, self.buckets), "+Inf"), counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows, running, total


_M = TypeVar("_M", Counter, Gauge, Histogram)


class Metrics:
    """The metric families of one model. Asking for the same name and labels again gives the same object.

    Family names are `tidal_<system>_<what>_<unit>`; the system's prefix is put before the given name.
    """

    def __init__(self, system: str) -> None:
        self._prefix = f"tidal_{system}_"
        self._labels: dict[str, str] = {}
        self._lock = threading.Lock()
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, Counter | Gauge | Histogram]] = {}
        self._more: dict[str, tuple[float, ...]] = {}

    def within(self, part: str, **labels: str) -> Metrics:
        """A part of these metrics: families `tidal_<system>_<part>_<what>_<unit>`, each series with labels more."""
        inner = copy.copy(self)  # which shares the series and their lock
        inner._prefix = f"{self._prefix}{part}_"
        inner._labels = {**self._labels, **labels}
        return inner

    def more_buckets(self, name: str, bounds: Sequence[float]) -> None:
        """Let histograms of this name that are made from now on have these upper bounds too."""
        self._more[name] = tuple(bounds)

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        """A counter; `name` ends in `_total`."""
        return self._get(name, help, labels, Counter)

    def gauge(self, name: str, help: str, **labels: str) -> Gauge:
        """A gauge."""
        return self._get(name, help, labels, Gauge)

    def histogram(self, name: str, help: str, buckets: Sequence[float] = LATENCY_BUCKETS, **labels: str) -> Histogram:
        """A histogram; `buckets` are ascending upper bounds."""
        # By their text, so that no two series of a histogram have the same label.
        bounds = {_bound(value): value for value in (*buckets, *self._more.get(name, ()))}
        return self._get(name, help, labels, lambda: Histogram(sorted(bounds.values())))

    def samples(self) -> Iterator[Sample]:
        """Every series as it stands. A histogram appears as its `_bucket`, `_sum` and `_count` counters."""
        with self._lock:
            series = list(self._series.items())
        for (name, labels), (help, metric) in series:
            if isinstance(metric, Histogram):
                rows, count, total = metric.cumulative()
                for bound, running in rows:
                    yield Sample(f"{name}_bucket", help, "counter", (*labels, ("le", bound)), running)
                yield Sample(f"{name}_sum", help, "counter", labels, total)
                yield Sample(f"{name}_count", help, "counter", labels, count)
            else:
                kind: Literal["counter", "gauge"] = "counter" if isinstance(metric, Counter) else "gauge"
                yield Sample(name, help, kind, labels, metric.value)

    def _get(self, name: str, help: str, labels: Mapping[str, str], make: Callable[[], _M]) -> _M:
        key = (self._prefix + name, tuple(sorted({**self._labels, **labels}.items())))
        with self._lock:
            if key not in self._series:
                self._series[key] = (help, make())
            return cast(_M, self._series[key][1])


def _bound(value: float) -> str:
    return f"{value:g}"
