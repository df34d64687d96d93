"""Counters of a running server, read from its /metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from reliability.models import ServedModel
from testing.metrics import published


def page(metrics: str) -> str:
    """Return the server's /metrics.

    Args:
        metrics: Address of the metrics endpoint, `host:port`.
    """
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
        return str(response.read().decode())


def answered(metrics: str, models: Iterable[ServedModel]) -> dict[str, int]:
    """Return the number of requests that each model has answered without an error, over all its versions.

    Args:
        metrics: Address of the metrics endpoint, `host:port`.
        models: Models to count.
    """
    text = page(metrics)
    found = {}
    for model in models:
        if model.system:
            count = published(text, f"tidal_{model.system}_requests_total", model=model.name, code="OK")
        else:
            count = published(text, "nv_inference_request_success", model=model.name)
        found[model.name] = int(count)
    return found


def in_flight(metrics: str, models: Iterable[ServedModel]) -> int:
    """Return the number of queries that Tidal's backends have accepted and not answered.

    Args:
        metrics: Address of the metrics endpoint, `host:port`.
        models: Models to count.
    """
    text = page(metrics)
    return int(sum(published(text, f"tidal_{m.system}_in_flight_queries", model=m.name) for m in models if m.system))
