"""What a server has counted, as its /metrics say it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from reliability.models import Model
from testing.metrics import published


def page(metrics: str) -> str:
    """The server's /metrics; `metrics` is its address."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
        return str(response.read().decode())


def answered(metrics: str, models: Iterable[Model]) -> dict[str, int]:
    """Requests that each model has answered without an error, all its versions together."""
    text = page(metrics)
    found = {}
    for model in models:
        if model.system:
            count = published(text, f"tidal_{model.system}_requests_total", model=model.name, code="OK")
        else:
            count = published(text, "nv_inference_request_success", model=model.name)
        found[model.name] = int(count)
    return found


def in_flight(metrics: str, models: Iterable[Model]) -> int:
    """Queries that Tidal's backends have accepted and not answered."""
    text = page(metrics)
    return int(sum(published(text, f"tidal_{m.system}_in_flight_queries", model=m.name) for m in models if m.system))
