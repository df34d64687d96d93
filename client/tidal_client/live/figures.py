"""Figures of a model over a window: rates, percentiles and means from the increases of its counters. All are pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidal_client.live.scrape import Labels, Scrape, Series


@dataclass(frozen=True, slots=True)
class Window:
    """What happened on all servers over some seconds.

    Attributes:
        seconds: Length of the window; 0 before there are two readings.
        increases: Increase of each counter, by family and model, then by labels.
        gauges: Latest value of all other series, in the same way.
    """

    seconds: float
    increases: Mapping[tuple[str, str], Mapping[Labels, float]] = field(default_factory=dict)
    gauges: Mapping[tuple[str, str], Mapping[Labels, float]] = field(default_factory=dict)

    def rate(self, family: str, model: str, label: str = "") -> dict[str, float]:
        """Increase per second, by the values of a label, or with an empty label of all series together as ``""``."""
        if not self.seconds:
            return {}
        found = _by_label(self.increases.get((family, model), {}), label)
        return {value: increase / self.seconds for value, increase in found.items()}

    def gauge(self, family: str, model: str, label: str = "") -> dict[str, float]:
        """Latest value, by the values of a label, or with an empty label of all series together as ``""``."""
        return _by_label(self.gauges.get((family, model), {}), label)

    def quantiles(self, family: str, model: str, shares: Sequence[float]) -> list[float | None]:
        """Quantiles of the observations of a histogram; None without observations.

        Args:
            family: Name of the histogram, without `_bucket`.
            model: Name of the model.
            shares: Shares of the observations, each from 0 to 1.
        """
        buckets = _by_label(self.increases.get((f"{family}_bucket", model), {}), "le")
        return [quantile(share, buckets) for share in shares]

    def mean(self, family: str, model: str, label: str = "") -> dict[str, float]:
        """Mean of the observations of a histogram, by the values of a label; without those that have none."""
        sums = _by_label(self.increases.get((f"{family}_sum", model), {}), label)
        counts = _by_label(self.increases.get((f"{family}_count", model), {}), label)
        return {value: sums[value] / count for value, count in counts.items() if count > 0 and value in sums}

    def ratio(self, above: str, below: str, model: str) -> float | None:
        """Increase of one counter for each of another; None where that did not increase."""
        most = sum(self.increases.get((below, model), {}).values())
        return sum(self.increases.get((above, model), {}).values()) / most if most > 0 else None


def window(seconds: float, changes: Iterable[Mapping[Series, float]], latest: Iterable[Scrape]) -> Window:
    """Add up what happened on all servers.

    Args:
        seconds: Length of the window.
        changes: Increases of the counters, of each server and each interval, see `increases`.
        latest: Latest reading of each server.
    """
    increased: dict[tuple[str, str], dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for change in changes:
        for series, increase in change.items():
            increased[series.family, series.model][series.labels] += increase
    gauges: dict[tuple[str, str], dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for scrape in latest:
        for series, value in scrape.values.items():
            if series not in scrape.counters:
                gauges[series.family, series.model][series.labels] += value
    return Window(seconds, increased, gauges)


def quantile(share: float, buckets: Mapping[str, float]) -> float | None:
    """Return a quantile of a histogram as Prometheus' `histogram_quantile` does, by linear interpolation.

    Args:
        share: Share of the observations below it, from 0 to 1.
        buckets: Number of observations up to each upper bound (the label `le`), the infinite one included.

    Returns:
        The quantile; the largest finite bound if it lies beyond that; None without observations.
    """
    rows = sorted((float(bound), count) for bound, count in buckets.items())
    if not rows or not math.isinf(rows[-1][0]) or rows[-1][1] <= 0:
        return None
    rank = share * rows[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in rows:
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            start = bound if lower == 0.0 and bound <= 0 else lower
            return start + (bound - start) * (rank - below) / (count - below)
        lower, below = bound if not math.isinf(bound) else lower, max(below, count)
    return lower


def _by_label(series: Mapping[Labels, float], label: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for labels, value in series.items():
        found[dict(labels).get(label, "") if label else ""] += value
    return dict(found)
