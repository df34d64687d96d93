"""Reading from /metrics which instances a partitioned model uses."""

from __future__ import annotations

import http.client
import re

from tidal.errors import Unavailable
from tidal.server.local_http import open_url

INSTANCES_GAUGE = "tidal_arlo_instances"
_SAMPLE = re.compile(rf"^{INSTANCES_GAUGE}\{{([^}}]*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_ANSWER_S = 10.0


def used_instances(metrics: str, front: str) -> dict[int, dict[int, int]]:
    """Instances in use, including those that are draining: by version of the model, then by max_length.

    Triton keeps the values of unloaded versions.

    Args:
        metrics: `host:port` of the Prometheus endpoint.
        front: Name of the partitioned model.

    Raises:
        Unavailable: The endpoint does not answer.
    """
    return parse_instances(read_metrics(metrics), front)


def read_metrics(metrics: str) -> str:
    """Read the text of a /metrics page.

    Args:
        metrics: `host:port` of the Prometheus endpoint.

    Raises:
        Unavailable: The endpoint does not answer.
    """
    try:
        with open_url(f"http://{metrics}/metrics", _ANSWER_S) as response:
            return str(response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no metrics at {metrics}: {getattr(error, 'reason', None) or error}") from None


def parse_instances(text: str, front: str) -> dict[int, dict[int, int]]:
    """As `used_instances`, from the text of a /metrics page."""
    found: dict[int, dict[int, int]] = {}
    for labels, value in _SAMPLE.findall(text):
        pairs = dict(_LABEL.findall(labels))
        if pairs.get("model") == front:
            found.setdefault(int(pairs["version"]), {})[int(pairs["runtime"])] = int(float(value))
    return found
