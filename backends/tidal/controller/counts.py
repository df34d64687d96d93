"""What happened to a model in a stretch of time. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened to a model in a stretch of time.

    Attributes:
        seconds: how long it was looked at.
        queries: that arrived, by the shortest runtime that fits.
        busy_s: engine seconds by runtime, of all its instances together.
        requests: that were answered.
        slow: of those, how many took longer than half the SLO.
        critical: of those, how many took longer than 95 % of the SLO.
        latency_s: seconds from arrival to answer, summed over `requests`.
    """

    seconds: float
    queries: tuple[float, ...]
    busy_s: tuple[float, ...]
    requests: int = 0
    slow: int = 0
    critical: int = 0
    latency_s: float = 0.0

    @classmethod
    def none(cls, runtimes: int) -> Counts:
        """Nothing seen yet."""
        return cls(0.0, (0.0,) * runtimes, (0.0,) * runtimes)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
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
        """Seconds from arrival to answer, or None where nothing was answered."""
        return self.latency_s / self.requests if self.requests else None
