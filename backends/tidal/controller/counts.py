"""Traffic counts of a model over a time span. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """Traffic counts of a model over a time span; add two with `+`.

    Attributes:
        seconds: Length of the time span.
        queries: Queries that arrived, by the shortest runtime that fits them.
        busy_s: Engine time by runtime, summed over its instances, in seconds.
        requests: Requests that were answered.
        slow: Answered requests that took longer than half the SLO.
        critical: Answered requests that took longer than 95 % of the SLO.
        latency_s: Time from arrival to answer, summed over the answered requests, in seconds.
    """

    seconds: float
    queries: tuple[float, ...]
    busy_s: tuple[float, ...]
    requests: int = 0
    slow: int = 0
    critical: int = 0
    latency_s: float = 0.0

    @classmethod
    def none(cls, runtimes: int) -> ModelCounts:
        """Return counts of an empty time span for a model with this many runtimes."""
        return cls(0.0, (0.0,) * runtimes, (0.0,) * runtimes)

    def __add__(self, other: ModelCounts) -> ModelCounts:
        return ModelCounts(
            self.seconds + other.seconds,
            tuple(a + b for a, b in zip(self.queries, other.queries, strict=True)),
            tuple(a + b for a, b in zip(self.busy_s, other.busy_s, strict=True)),
            self.requests + other.requests,
            self.slow + other.slow,
            self.critical + other.critical,
            self.latency_s + other.latency_s,
        )

    @property
    def mean_latency_s(self) -> float | None:
        """Mean time from arrival to answer, in seconds; None if nothing was answered."""
        return self.latency_s / self.requests if self.requests else None
