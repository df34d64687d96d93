"""Metrics aggregated in this process: cheap to record from any thread, published by the Triton boundary."""

from __future__ import annotations

import bisect
import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

# Upper bounds in seconds, from a fraction of a short query's time to the default client timeout.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# Observations that are kept until metrics are read.
_MAX_DEFERRED = 4096
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Sample:
    """Current value of one time series.

    Attributes:
        family: Name of its Prometheus family.
        help: Help text of the family.
        kind: Type of the family.
        labels: Names and values of its labels, without those of the model.
        value: Current value.
    """

    family: str
    help: str
    kind: Literal["counter", "gauge"]
    labels: tuple[tuple[str, str], ...]
    value: float


class Counter:
    """A value that only increases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, which must not be negative."""
        with self._lock:
            self.value += amount


class Gauge:
    """A value that increases and decreases."""

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


class Histogram:
    """Numbers of observations by upper bound, and the sum of all observations."""

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

    def observe_all(self, values: Sequence[float]) -> None:
        """Count several observations at once."""
        indices = [bisect.bisect_left(self.buckets, value) for value in values]
        with self._lock:
            for index in indices:
                self.counts[index] += 1
            self.sum += sum(values)

    def cumulative(self) -> tuple[list[tuple[str, int]], int, float]:
        """Return (`le` bound, observations up to it) for every bucket, the number of observations and their sum."""
        with self._lock:
            counts, total = list(self.counts), self.sum
        rows, running = [], 0
        for bound, count in zip((*map(_bound, self.buckets), "+Inf"), counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows, running, total


class Deferred(Generic[_Item]):
    """Observations that are recorded when metrics are read: adding one costs an append, whatever it is recorded in.

    Args:
        record: Records one observation.
    """

    def __init__(self, record: Callable[[_Item], None]) -> None:
        self._record = record
        self._items: deque[_Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: _Item) -> None:
        """Add an observation, from any thread."""
        self._items.append(item)
        if len(self._items) >= _MAX_DEFERRED:
            self.flush()

    def flush(self) -> None:
        """Record what was added, each observation once whatever the number of threads that call this."""
        while self._items:
            try:
                item = self._items.popleft()
            except IndexError:  # another thread was faster
                return
            self._record(item)


_M = TypeVar("_M", Counter, Gauge, Histogram)


class Metrics:
    """Metric families of one model; the same name and labels always give the same object.

    Family names are `tidal_<system>_<what>_<unit>`: the prefix `tidal_<system>_` is added to the given name.

    Args:
        system: Name of the system.
    """

    def __init__(self, system: str) -> None:
        self._prefix = f"tidal_{system}_"
        self._labels: dict[str, str] = {}
        self._lock = threading.Lock()
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, Counter | Gauge | Histogram]] = {}
        self._extra_buckets: dict[str, tuple[float, ...]] = {}
        self._deferred: dict[tuple[str, tuple[tuple[str, str], ...]], Deferred[Any]] = {}

    def within(self, part: str, **labels: str) -> Metrics:
        """Return metrics whose families are `tidal_<system>_<part>_<what>_<unit>`, published with these.

        Args:
            part: Addition to the prefix.
            labels: Labels that every series gets.
        """
        inner = copy.copy(self)  # shares the series and their lock
        inner._prefix = f"{self._prefix}{part}_"
        inner._labels = {**self._labels, **labels}
        return inner

    def more_buckets(self, name: str, bounds: Sequence[float]) -> None:
        """Add upper bounds to the histograms of a name that are created from now on.

        Args:
            name: Name of the histograms, without the prefix.
            bounds: Upper bounds, in the unit of the histogram.
        """
        self._extra_buckets[name] = tuple(bounds)

    def deferred(self, name: str, record: Callable[[_Item], None]) -> Deferred[_Item]:
        """Return the observations of a name, which are recorded before samples are read.

        Args:
            name: Name of the observations; the first call with it determines `record`.
            record: Records one observation in these metrics; any thread may call it.
        """
        key = (self._prefix + name, tuple(sorted(self._labels.items())))
        with self._lock:
            return self._deferred.setdefault(key, Deferred(record))

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        """Return the counter of a name and labels; `name` ends in `_total`."""
        return self._get(name, help, labels, Counter)

    def gauge(self, name: str, help: str, **labels: str) -> Gauge:
        """Return the gauge of a name and labels."""
        return self._get(name, help, labels, Gauge)

    def histogram(self, name: str, help: str, buckets: Sequence[float] = LATENCY_BUCKETS, **labels: str) -> Histogram:
        """Return the histogram of a name and labels; `buckets` are ascending upper bounds."""
        # Keyed by their text, so that no two series of a histogram have the same label.
        bounds = {_bound(value): value for value in (*buckets, *self._extra_buckets.get(name, ()))}
        return self._get(name, help, labels, lambda: Histogram(sorted(bounds.values())))

    def samples(self) -> Iterator[Sample]:
        """Yield the current value of every series; a histogram gives its `_bucket`, `_sum` and `_count` counters."""
        with self._lock:
            deferred = list(self._deferred.values())
        for each in deferred:
            each.flush()
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
