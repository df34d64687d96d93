"""A few lines of a server's page of Prometheus metrics, as they stand there."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Mapping

# What each backend counted of the demo's models, and Triton of the ensemble.
WANTED: Mapping[str, str] = {
    "tidal_arlo_executed_queries_total": "intents",
    "tidal_tabi_answered_queries_total": "intents_cascade",
    "tidal_pets_executed_queries_total": "encoder",
    "tidal_otas_executed_queries_total": "digits",
    "tidal_flover_requests_total": "writer",
    "nv_inference_request_success": "text_to_checked_label",
}
_SETTLED_S, _PAGE_S = 1.0, 10.0


def sample_of(address: str) -> list[str]:
    """The lines of the `WANTED` families and models.

    Args:
        address: of /metrics, which backends bring up to date some times a second: so it is read a second later.

    Raises:
        TimeoutError: a family is missing.
    """
    time.sleep(_SETTLED_S)
    until = time.monotonic() + _PAGE_S
    while True:
        with urllib.request.urlopen(address, timeout=10) as response:
            lines = chosen(response.read().decode())
        missing = WANTED.keys() - {line.partition("{")[0] for line in lines}
        if not missing:
            return lines
        if time.monotonic() > until:
            raise TimeoutError(f"{address} has no {', '.join(sorted(missing))}")
        time.sleep(0.1)


def chosen(page: str) -> list[str]:
    """The series of a page that are `WANTED`, in that order."""
    lines = page.splitlines()
    return [
        line
        for family, model in WANTED.items()
        for line in lines
        if re.match(rf'{family}{{.*model="{model}"', line) and not line.endswith(" 0")
    ]
