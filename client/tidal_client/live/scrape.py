"""One reading of a server's metrics, and how much its counters increased since the one before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]

#: Families that are read; of all others only the name is compared.
PREFIXES: Final = (
    *(f"tidal_{system}_" for system in ("arlo", "tabi", "pets", "otas", "flover")),
    "nv_inference_request_success",
    "nv_inference_request_duration_us",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_pending_request_count",
)
_OWN: Final = frozenset({"model", "version"})


class Series(NamedTuple):
    """One time series of a model.

    Attributes:
        family: Name of the sample without `_total`, such as `tidal_arlo_queue_seconds_bucket`.
        model: Name of the model.
        version: Version of the model.
        labels: Further labels, sorted by name.
    """

    family: str
    model: str
    version: str
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of a server's metrics.

    Attributes:
        time_s: Time of the reading, by a monotonic clock, in seconds.
        values: Value of each series.
        counters: Series that only increase.
    """

    time_s: float
    values: Mapping[Series, float]
    counters: frozenset[Series] = field(default=frozenset())


def parse(text: str, time_s: float) -> Scrape:
    """Parse a page in Prometheus' text format; series without a model are left out.

    Args:
        text: Content of the page.
        time_s: Time of the reading, in seconds.

    Raises:
        ValueError: The text has another form.
    """
    values: dict[Series, float] = {}
    counters = set()
    for family in text_string_to_metric_families("\n".join(_wanted(text)) + "\n"):
        for sample in family.samples:
            if "model" not in sample.labels:
                continue
            own = tuple(sorted((name, value) for name, value in sample.labels.items() if name not in _OWN))
            # The parser adds `_total` to counters that have none, such as those of Triton's own histograms.
            name = sample.name.removesuffix("_total")
            series = Series(name, sample.labels["model"], sample.labels.get("version", ""), own)
            values[series] = sample.value
            if family.type in ("counter", "histogram"):
                counters.add(series)
    return Scrape(time_s, values, frozenset(counters))


def increases(before: Scrape, after: Scrape) -> dict[Series, float]:
    """Return how much each counter increased between two readings of one server.

    A counter that is lower than before was restarted from 0, and one that is new began at 0.
    """
    found = {}
    for series in after.counters:
        value, old = after.values[series], before.values.get(series, 0.0)
        found[series] = value - old if value >= old else value
    return found


def _wanted(text: str) -> Iterable[str]:
    for line in text.splitlines():
        name = line.split(" ", 3)[2] if line.startswith(("# TYPE ", "# HELP ")) and line.count(" ") > 2 else line
        if name.startswith(PREFIXES):
            yield line
