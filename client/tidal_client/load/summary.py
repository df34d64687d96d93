"""A run in figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal_client.load.result import LoadResult

#: A send this late, in milliseconds, counts as late.
LATE_MS = 10.0
# More late sends than this, and the generator was the bottleneck: p99 of the send lag is above the bound then.
_LATE_SHARE = 0.01
# Python runs one thread at a time, so a generator cannot use much more than one core.
_BUSY_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Milliseconds over answered requests; percentiles interpolate linearly between ranks."""

    mean: float
    p50: float
    p98: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class GenerationFigures:
    """Figures of answered generations."""

    #: From the scheduled time to the first tokens, milliseconds.
    first_token_ms: LatencyFigures | None
    #: From the first tokens to the end, over the tokens after the first, milliseconds; of generations of two or more.
    inter_token_ms: LatencyFigures | None
    #: Tokens of all answers.
    tokens: int
    #: The same, a second of the run.
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Figures of all requests, or of those of one variant of the mix."""

    requests: int
    answered: int
    #: Answers a second, from the start of the run to its end.
    throughput: float
    #: Requests that were answered within their limit; None where there is no limit.
    within_slo: int | None
    #: The same, a second.
    goodput: float | None
    #: From the scheduled time, as a user sees it. None when nothing was answered.
    latency_ms: LatencyFigures | None
    #: From the moment the request was sent.
    latency_from_send_ms: LatencyFigures | None
    #: Number of requests by error code, timeouts of the client (`DEADLINE_EXCEEDED`) included.
    errors: Mapping[str, int]
    #: Times that a request was sent again.
    resent: int
    #: None where no text was generated.
    generation: GenerationFigures | None

    @property
    def violations(self) -> float | None:
        """Share of the requests that failed or came later than their limit."""
        return None if self.within_slo is None else 1 - self.within_slo / self.requests


@dataclass(frozen=True, slots=True)
class GeneratorFigures:
    """How the generator itself did."""

    #: Milliseconds by which requests were sent late.
    send_lag_ms: LatencyFigures
    #: Share of requests that were sent later than the bound.
    late_share: float
    late_bound_ms: float
    #: Processor time over wall time; 1 is a whole core.
    cpu_share: float
    cpu_per_request_ms: float

    @property
    def warning(self) -> str:
        """What made the generator the bottleneck; empty when it was not."""
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
    """A run in figures: all requests, and each variant of the mix where there are several."""

    #: Seconds from the start of the run until the last request ended.
    duration_s: float
    #: Requests a second that the schedule asked for, up to its last.
    offered_rate: float
    total: RequestFigures
    #: By name of the variant.
    variants: Mapping[str, RequestFigures]
    #: First sentence of each error.
    messages: Mapping[str, str]
    generator: GeneratorFigures

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        found = asdict(self)
        found["total"]["violations"] = self.total.violations
        for name, row in self.variants.items():
            found["variants"][name]["violations"] = row.violations
        found["generator"]["bottleneck"] = bool(self.generator.warning)
        found["generator"]["warning"] = self.generator.warning
        return found


def summarise(result: LoadResult, *, slo_ms: float | None = None, late_ms: float = LATE_MS) -> LoadSummary:
    """Figures of a run.

    Args:
        result: what became of each request.
        slo_ms: limit in milliseconds from the scheduled time; None takes each request's own `latency_ms`.
        late_ms: a send later than this counts as late.
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
