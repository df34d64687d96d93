"""Readings of servers over time, and the figures of all models over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidal_client.live.charts import system_of, values_of
from tidal_client.live.figures import Window, window
from tidal_client.live.scrape import Scrape, Series, increases

#: Rates and percentiles are of this many seconds.
WINDOW_S: Final = 5.0


@dataclass(slots=True)
class ModelFigures:
    """Figures of one model.

    Attributes:
        name: Name of the model.
        system: Its system; empty for other backends.
        versions: Versions that have metrics.
        values: Values by chart, then by series.
    """

    name: str
    system: str
    versions: tuple[str, ...]
    values: dict[str, dict[str, float]]

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data for JSON."""
        return {
            "name": self.name,
            "system": self.system,
            "versions": list(self.versions),
            "summary": summary(self.values),
            "values": self.values,
        }


def summary(values: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Return the figures of a model that fit on one line: requests per second, latency in ms, queries in the queue.

    Args:
        values: Values by chart, then by series.
    """
    latency, queue = values.get("latency", {}), values.get("queue", {})
    return {
        "per_second": sum(values["throughput"].values()) if values.get("throughput") else None,
        "p50_ms": latency.get("p50", latency.get("mean")),
        "p99_ms": latency.get("p99"),
        "queue": queue.get("waiting", queue.get("in flight")),
    }


class Recorder:
    """Keeps the readings of the last seconds."""

    def __init__(self) -> None:
        self._latest: dict[str, Scrape] = {}
        self._changes: deque[tuple[float, float, dict[Series, float]]] = deque()

    def add(self, server: str, scrape: Scrape) -> None:
        """Add a reading of a server; readings of one server are added in the order of their times."""
        before = self._latest.get(server)
        self._latest[server] = scrape
        if before is not None and scrape.time_s > before.time_s:
            self._changes.append((before.time_s, scrape.time_s, increases(before, scrape)))

    def drop(self, server: str) -> None:
        """Forget a server that does not answer."""
        self._latest.pop(server, None)

    def window(self) -> Window:
        """Return what happened in the last `WINDOW_S` seconds."""
        newest = max((end for _, end, _ in self._changes), default=0.0)
        while self._changes and self._changes[0][1] <= newest - WINDOW_S:
            self._changes.popleft()
        seconds = newest - min((start for start, _, _ in self._changes), default=newest)
        return window(seconds, (change for _, _, change in self._changes), self._latest.values())

    def models(self) -> list[ModelFigures]:
        """Return the figures of all models that have metrics, by name."""
        families: dict[str, set[str]] = {}
        versions: dict[str, set[str]] = {}
        for scrape in self._latest.values():
            for series in scrape.values:
                families.setdefault(series.model, set()).add(series.family)
                versions.setdefault(series.model, set()).add(series.version)
        now = self.window()
        found = []
        for name in sorted(families):
            system = system_of(families[name])
            # Versions are numbers; others come last.
            own = sorted(versions[name], key=lambda version: (not version.isdecimal(), len(version), version))
            found.append(ModelFigures(name, system, tuple(own), values_of(now, name, system)))
        return found
