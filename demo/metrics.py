"""A few lines of a server's Prometheus metrics."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Mapping

# One metric per backend with the demo's model, and Triton's metric of the ensemble.
WANTED: Mapping[str, str] = {
    "tidal_arlo_executed_queries_total": "intents",
    "tidal_tabi_answered_queries_total": "intents_cascade",
    "tidal_pets_executed_queries_total": "encoder",
    "tidal_otas_executed_queries_total": "digits",
    "tidal_flover_requests_total": "writer",
    "nv_inference_request_success": "text_to_checked_label",
}
# Backends publish metrics a few times per second.
_PUBLISHED_S, _PAGE_S = 1.0, 10.0


def sample_of(address: str) -> list[str]:
    """Return the lines of the `WANTED` metrics and models.

    Args:
        address: URL of the metrics page; it is read after a second, when the backends have updated it.

    Raises:
        TimeoutError: A metric is missing.
    """
    time.sleep(_PUBLISHED_S)
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
    """Return the `WANTED` lines of a page, in the order of `WANTED`."""
    lines = page.splitlines()
    return [
        line
        for family, model in WANTED.items()
        for line in lines
        if re.match(rf'{family}{{.*model="{model}"', line) and not line.endswith(" 0")
    ]
