"""Summary statistics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal_client.load.result import LoadResult

#: Default bound for late sends, in milliseconds.
LATE_MS = 10.0
# A larger share of late sends means that the generator was the bottleneck: the p99 of the send delay exceeds the bound.
_LATE_SHARE = 0.01
# Python runs one thread at a time, so the generator cannot use much more than one core.
_BUSY_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Latency statistics of answered requests in milliseconds; percentiles are linearly interpolated."""

    mean: float
    p50: float
    p98: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class GenerationFigures:
    """Statistics of answered generation requests."""

    #: Time to first token from the scheduled send, in milliseconds.
    first_token_ms: LatencyFigures | None
    #: Mean time per token after the first, in milliseconds, of generations of two tokens or more.
    inter_token_ms: LatencyFigures | None
    #: Number of tokens in total.
    tokens: int
    #: Tokens per second of the run.
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Statistics of all requests, or of one variant of the mix."""

    requests: int
    answered: int
    #: Answered requests per second of the run.
    throughput: float
    #: Requests answered within their limit; None: no limit.
    within_slo: int | None
    #: Requests answered within their limit per second of the run; None: no limit.
    goodput: float | None
    #: Latency from the scheduled send; None: nothing was answered.
    latency_ms: LatencyFigures | None
    #: Latency from the actual send.
    latency_from_send_ms: LatencyFigures | None
    #: Number of requests by error code, including client timeouts (`DEADLINE_EXCEEDED`).
    errors: Mapping[str, int]
    #: Number of retries.
    resent: int
    #: None for requests that generate no text.
    generation: GenerationFigures | None

    @property
    def violations(self) -> float | None:
        """Share of the requests that failed or exceeded their limit."""
        return None if self.within_slo is None else 1 - self.within_slo / self.requests


@dataclass(frozen=True, slots=True)
class GeneratorFigures:
    """Send delays and processor use of the generator itself."""

    #: Delay of the sends, in milliseconds.
    send_lag_ms: LatencyFigures
    #: Share of sends later than the bound.
    late_share: float
    late_bound_ms: float
    #: Processor time over wall time; 1: one core.
    cpu_share: float
    cpu_per_request_ms: float

    @property
    def warning(self) -> str:
        """Why the generator was the bottleneck; empty if it was not."""
        if self.late_share > _LATE_SHARE:
            return (
                f"the generator was a bottleneck: {self.late_share:.1%} of the requests were sent more than "
                f"{self.late_bound_ms:g} ms late (p99 {self.send_lag_ms.p99:.1f} ms)"
            )
        if self.cpu_share > _BUSY_SHARE:
            return f"the generator was a bottleneck: it used {self.cpu_share:.0%} of a core"
        return ""


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Summary statistics of a run, in total and by variant if there are several."""

    #: Time until the last request ended, in seconds.
    duration_s: float
    #: Scheduled requests per second.
    offered_rate: float
    total: RequestFigures
    #: Statistics by variant name.
    variants: Mapping[str, RequestFigures]
    #: First message of each error code.
    messages: Mapping[str, str]
    generator: GeneratorFigures

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a dictionary for JSON."""
        summary = asdict(self)
        summary["total"]["violations"] = self.total.violations
        for name, row in self.variants.items():
            summary["variants"][name]["violations"] = row.violations
        summary["generator"]["bottleneck"] = bool(self.generator.warning)
        summary["generator"]["warning"] = self.generator.warning
        return summary


def summarise(result: LoadResult, *, slo_ms: float | None = None, late_ms: float = LATE_MS) -> LoadSummary:
    """Summarise a run.

    Args:
        result: Result of the run.
        slo_ms: Latency limit from the scheduled send, in milliseconds; None: each request's `latency_ms`.
        late_ms: Bound above which a send counts as late, in milliseconds.
    """
    own = [variant.parameters.get("latency_ms") for variant in result.mix]
    limits_ms = np.array([slo_ms if slo_ms is not None else np.nan if ms is None else float(ms) for ms in own])
    everything = np.ones(len(result.scheduled), np.bool_)
    names = [variant.name for variant in result.mix]
    return LoadSummary(
        result.duration,
        len(result.scheduled) / float(result.scheduled[-1]) if result.scheduled[-1] > 0 else 0.0,
        _row(result, everything, limits_ms),
        {
            name: _row(result, chosen, limits_ms)
            for number, name in enumerate(names)
            if len(names) > 1 and (chosen := result.variants == number).any()
        },
        dict(result.messages),
        _generator(result, late_ms),
    )


def _row(result: LoadResult, chosen: npt.NDArray[np.bool_], limits_ms: npt.NDArray[np.float64]) -> RequestFigures:
    answered = chosen & result.answered
    limits = limits_ms[result.variants[chosen]]
    within = goodput = None
    if not np.isnan(limits).any():
        within = int((result.latency[chosen] * 1000 <= limits)[result.answered[chosen]].sum())
        goodput = within / result.duration
    counts = {code: int((result.status[chosen] == n).sum()) for n, code in enumerate(result.codes) if n}
    return RequestFigures(
        int(chosen.sum()),
        int(answered.sum()),
        float(answered.sum()) / result.duration,
        within,
        goodput,
        _latency(result.latency[answered]),
        _latency((result.done - result.sent)[answered]),
        {code: count for code, count in counts.items() if count},
        int(result.resent[chosen].sum()),
        _generation(result, answered),
    )


def _generation(result: LoadResult, answered: npt.NDArray[np.bool_]) -> GenerationFigures | None:
    if result.generated is None:
        return None
    first, tokens = result.generated.first, result.generated.tokens
    some, several = answered & (tokens > 0), answered & (tokens > 1)
    return GenerationFigures(
        _latency((first - result.scheduled)[some]),
        _latency((result.done - first)[several] / (tokens[several] - 1)),
        int(tokens[answered].sum()),
        float(tokens[answered].sum()) / result.duration,
    )


def _generator(result: LoadResult, late_ms: float) -> GeneratorFigures:
    lag = _latency(np.maximum(result.send_lag, 0.0))
    assert lag is not None
    return GeneratorFigures(
        lag,
        float((result.send_lag * 1000 > late_ms).mean()),
        late_ms,
        result.cpu_s / result.duration,
        result.cpu_s * 1000 / len(result.sent),
    )


def _latency(seconds: npt.NDArray[np.float64]) -> LatencyFigures | None:
    if not len(seconds):
        return None
    p50, p98, p99 = np.percentile(seconds, (50, 98, 99)) * 1000
    return LatencyFigures(float(seconds.mean() * 1000), float(p50), float(p98), float(p99), float(seconds.max() * 1000))
