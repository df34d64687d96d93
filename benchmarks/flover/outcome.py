"""Outcome of one system under one load, and its figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.flover.sending import Trace

_POINTS = 200


@dataclass(frozen=True, slots=True)
class FloverOutcome:
    """One run; times count from the first request's arrival, latencies from the arrival of each request.

    Attributes:
        total_s: Time of the last token in seconds.
        latencies_s: Latency of each request's last token in seconds.
        firsts_s: Latency of each request's first token in seconds.
        spans: Times of each request's first and last token in seconds.
        tokens: Number of tokens of all requests.
        progress: Times in seconds, and number of tokens until then.
        calls: Number of passes of the engine, without pure prefill passes.
        peak_mib: Peak resident memory of the model's process in MiB.
        threads: Largest number of threads of that process.
        server: Share of the cores used by the server.
        others: Share of the cores used by other work.
    """

    total_s: float
    latencies_s: list[float]
    firsts_s: list[float]
    spans: list[tuple[float, float]]
    tokens: int
    progress: list[tuple[float, int]]
    calls: int
    peak_mib: float
    threads: int
    server: float
    others: float

    @classmethod
    def read(cls, found: dict[str, Any]) -> FloverOutcome:
        """Read an outcome from JSON, which has lists instead of tuples."""
        spans = [(first, last) for first, last in found["spans"]]
        progress = [(at, tokens) for at, tokens in found["progress"]]
        return cls(**{**found, "spans": spans, "progress": progress})

    @property
    def latency_s(self) -> float:
        """Mean latency of the last token in seconds."""
        return statistics.mean(self.latencies_s)

    @property
    def first_s(self) -> float:
        """Mean time to the first token in seconds."""
        return statistics.mean(self.firsts_s)

    @property
    def token_s(self) -> float:
        """Mean time between the tokens of a request in seconds."""
        between = self.tokens - len(self.spans)
        return sum(last - first for first, last in self.spans) / between if between else 0.0

    @property
    def per_second(self) -> float:
        """Tokens per second."""
        return self.tokens / self.total_s

    @property
    def fused(self) -> float:
        """Mean number of requests per pass; first tokens come from prefill and are not counted."""
        return (self.tokens - len(self.spans)) / max(1, self.calls)

    @property
    def overlap(self) -> float:
        """Mean number of simultaneously generating requests, as a share of all (Figure 5)."""
        begin, end = min(first for first, _ in self.spans), max(last for _, last in self.spans)
        busy = sum(last - first for first, last in self.spans)
        return busy / (end - begin) / len(self.spans) if end > begin else 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """Figures of server and machine during a run, see `FloverOutcome`."""

    calls: int
    peak_mib: float
    threads: int
    server: float
    others: float


def outcome_of(traces: Sequence[Trace], watched: Watched) -> FloverOutcome:
    """Return the outcome of a run."""
    came = sorted((at, tokens) for trace in traces for at, tokens in trace.parts)
    total, progress = 0, []
    for at, tokens in came:
        total += tokens
        progress.append((round(at, 3), total))
    step = max(1, len(progress) // _POINTS)
    thinned = progress[::step]
    return FloverOutcome(
        total_s=came[-1][0],
        latencies_s=[trace.parts[-1][0] - trace.begun_s for trace in traces],
        firsts_s=[trace.parts[0][0] - trace.begun_s for trace in traces],
        spans=[(trace.parts[0][0], trace.parts[-1][0]) for trace in traces],
        tokens=total,
        progress=thinned if thinned[-1] == progress[-1] else [*thinned, progress[-1]],
        calls=watched.calls,
        peak_mib=watched.peak_mib,
        threads=watched.threads,
        server=watched.server,
        others=watched.others,
    )


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of two figures."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
