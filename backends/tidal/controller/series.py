"""Counters of the `arlo` backend on a /metrics page. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from tidal.arlo.scheduling.scaling import IN_BELOW, OUT_AT
from tidal.controller.counts import ModelCounts

# Values by series: a name and its labels.
Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]

_PREFIX = "tidal_arlo_"
SLO_GAUGE = f"{_PREFIX}slo_seconds"
_LENGTHS = f"{_PREFIX}query_length_tokens_bucket"
_LATENCIES = f"{_PREFIX}request_seconds"
_EXECUTED = f"{_PREFIX}execute_seconds_sum"
# Bucket bounds are published with six digits.
_SAME_BOUND = 1e-5


def parse_series(text: str) -> Series:
    """Parse the series of the `arlo` backend on a /metrics page."""
    own = "\n".join(line for line in text.splitlines() if line.startswith(_PREFIX)) + "\n"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(own)
        for sample in family.samples
    }


def slo_of(series: Series, model: str, version: int) -> float | None:
    """Return the SLO of a model's version in seconds, or None if it is not published yet."""
    return series.get((SLO_GAUGE, frozenset({("model", model), ("version", str(version))})))


def counts_of(
    series: Series, model: str, versions: Collection[int], lengths: Sequence[int], slo_s: float
) -> ModelCounts:
    """Return a model's traffic counts since the server's start, without the time.

    Args:
        series: The series.
        model: Name of the model.
        versions: Versions of the model that are loaded.
        lengths: The runtimes' `max_length` in tokens, ascending.
        slo_s: Latency objective, in seconds.
    """
    own: dict[str, list[tuple[dict[str, str], float]]] = {}
    wanted = {str(version) for version in versions}
    for (name, pairs), value in series.items():
        labels = dict(pairs)
        if labels.get("model") == model and labels.get("version") in wanted:
            own.setdefault(name, []).append((labels, value))
    upto = [_sum(own.get(_LENGTHS, ()), "le", length) for length in lengths]
    answered = own.get(f"{_LATENCIES}_bucket", ())
    requests = round(_sum(answered, "le", math.inf))
    return ModelCounts(
        seconds=0.0,
        # The buckets of a histogram are not published atomically: a longer one may lag behind.
        queries=tuple(max(0.0, b - a) for a, b in zip([0.0, *upto], upto, strict=False)),
        busy_s=tuple(_sum(own.get(_EXECUTED, ()), "runtime", length) for length in lengths),
        requests=requests,
        slow=max(0, requests - round(_sum(answered, "le", IN_BELOW * slo_s))),
        critical=max(0, requests - round(_sum(answered, "le", OUT_AT * slo_s))),
        latency_s=sum(value for _, value in own.get(f"{_LATENCIES}_sum", ())),
    )


def _sum(series: Collection[tuple[dict[str, str], float]], label: str, value: float) -> float:
    return sum(found for labels, found in series if math.isclose(float(labels[label]), value, rel_tol=_SAME_BOUND))
