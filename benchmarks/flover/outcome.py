"""What came of one system under one load, and the figures that are made of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.flover.sending import Trace

_POINTS = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; seconds count from the first request's arrival, latencies from the arrival of each.

    Attributes:
        total_s: until the last token.
        latencies_s: to each request's last token.
        firsts_s: to each request's first token.
        spans: when each request's first and last token came.
        tokens: of all requests.
        progress: seconds, and tokens until then.
        calls: passes of the engine, without those that only read prompts.
        peak_mib: most resident memory of the model's process.
        threads: most threads of that process.
        server: share of the cores that the server used.
        others: share that other work used.
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
    def read(cls, found: dict[str, Any]) -> Outcome:
        """From JSON, which has lists for tuples."""
        spans = [(first, last) for first, last in found["spans"]]
        progress = [(at, tokens) for at, tokens in found["progress"]]
        return cls(**{**found, "spans": spans, "progress": progress})

    @property
    def latency_s(self) -> float:
        """Mean."""
        return statistics.mean(self.latencies_s)

    @property
    def first_s(self) -> float:
        """Mean time to the first token."""
        return statistics.mean(self.firsts_s)

    @property
    def token_s(self) -> float:
        """Mean time between the tokens of a request."""
        between = self.tokens - len(self.spans)
        return sum(last - first for first, last in self.spans) / between if between else 0.0

    @property
    def per_second(self) -> float:
        """Tokens a second."""
        return self.tokens / self.total_s

    @property
    def fused(self) -> float:
        """Mean number of requests that a pass gave a token to; first tokens come of prompts."""
        return (self.tokens - len(self.spans)) / max(1, self.calls)

    @property
    def overlap(self) -> float:
        """Mean number of requests that generate at the same time, as a share of all of them (Figure 5)."""
        begin, end = min(first for first, _ in self.spans), max(last for _, last in self.spans)
        busy = sum(last - first for first, last in self.spans)
        return busy / (end - begin) / len(self.spans) if end > begin else 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """What the machine did meanwhile; figures are those of `Outcome`."""

    calls: int
    peak_mib: float
    threads: int
    server: float
    others: float


def outcome_of(traces: Sequence[Trace], watched: Watched) -> Outcome:
    """Everything that is kept of a run."""
    came = sorted((at, tokens) for trace in traces for at, tokens in trace.parts)
    total, progress = 0, []
    for at, tokens in came:
        total += tokens
        progress.append((round(at, 3), total))
    step = max(1, len(progress) // _POINTS)
    thinned = progress[::step]
    return Outcome(
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
    """Median over the rounds of one figure by another of the same round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
