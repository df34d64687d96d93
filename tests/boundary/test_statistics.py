"""Triton's own statistics of a model that answers after `execute`, and of an ensemble of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from testing.servers import RunningServer
from testing.waiting import until
from tests.boundary.clients import ProbeClient
from tests.boundary.scraping import value

pytestmark = pytest.mark.server

_CONFIG = """
platform: "ensemble"
max_batch_size: 64
input [ { name: "action" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "echo" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "%s"
  model_version: -1
  input_map { key: "action" value: "action" }
  output_map { key: "echo" value: "echo" }
} ] }
"""


@pytest.fixture
def ensemble(server: RunningServer, fresh: str) -> Iterator[str]:
    name = f"{fresh}_ensemble"
    (server.repository / name / "1").mkdir(parents=True)
    (server.repository / name / "config.pbtxt").write_text(_CONFIG % fresh)
    server.control.load(name, None)
    yield name
    server.control.unload(name)


def seconds(server: RunningServer, model: str) -> tuple[int, float]:
    """Number of successful requests of a model and their total duration in seconds, as counted by Triton."""
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{model}/stats", timeout=10) as response:
        (stats,) = json.load(response)["model_stats"]
    success = stats["inference_stats"]["success"]
    return int(success["count"]), int(success["ns"]) / 1e9


def test_only_ensembles_and_tidals_metrics_include_the_time_to_the_response(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str, ensemble: str
) -> None:
    for ask in clients.values():
        ask("sleep 1500", model=ensemble, outputs=["echo"])
    # Triton counts a request after it has sent the response.
    assert until(lambda: seconds(server, ensemble)[0] == 2)
    assert seconds(server, ensemble)[1] >= 3.0
    # As documented in docs/how-to/monitor.md: Triton's own figures of the model are too small.
    assert until(lambda: seconds(server, fresh)[0] == 2)
    assert seconds(server, fresh)[1] < 3.0
    assert until(lambda: value(server, "tidal_probe_request_seconds_count", fresh) == 2)
    assert value(server, "tidal_probe_request_seconds_sum", fresh) >= 3.0
