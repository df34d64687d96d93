"""Pages of /metrics like those of the `arlo` backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidal.arlo.metrics import publish_objective
from tidal.metrics import Metrics


def page(
    *,
    slo_s: float,
    lengths: Mapping[int, int] = {},
    latencies_s: Sequence[float] = (),
    busy_s: Mapping[int, float] = {},
    model: str = "m",
    version: int = 1,
) -> str:
    """A page of a model with a number of queries of each length, and latencies of its responses."""
    metrics = Metrics("arlo")
    publish_objective(metrics, slo_s)
    arrived = metrics.histogram("query_length_tokens", "", buckets=sorted(lengths) or (1,))
    for length, count in lengths.items():
        for _ in range(count):
            arrived.observe(length)
    answered = metrics.histogram("request_seconds", "")
    for seconds in latencies_s:
        answered.observe(seconds)
    for length, seconds in busy_s.items():
        metrics.histogram("execute_seconds", "", runtime=str(length)).observe(seconds)
    rows = []
    for sample in metrics.samples():
        labels = {"model": model, "version": str(version), **dict(sample.labels)}
        shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
        rows.append(f"{sample.family}{{{shown}}} {sample.value!r}")
    return "\n".join(rows) + "\n"
