"""A real Prometheus over a real server and controller, by the committed configuration: every query returns data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testing.controller import controller
from testing.serving import serving
from testing.waiting import until
from tests.deploy.project import ON_GPUS, ROOT, documents
from tests.deploy.prometheus import PROMETHEUS, Prometheus, started
from tests.deploy.queries import queries
from tidal.device import has_gpu
from tidal.server.endpoints import choose_endpoints

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")  # Debian's name, and its own
pytestmark = [
    pytest.mark.server,
    pytest.mark.prometheus,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH: apt-get install prometheus"),
]
# Length of a burst of requests in seconds, and how many may be needed until every query returns data.
_BURST_S, _BURSTS = 6, 5


@pytest.fixture(scope="module")
def prometheus(everything_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus after a while of requests of all kinds to a model of each system."""
    from tests.deploy import everything

    folder = tmp_path_factory.mktemp("prometheus")
    repository, images = everything_folder / "models", everything_folder / "images"
    with (
        serving(repository, folder / "run", "--exit-timeout", "10") as served,
        controller(served.environment, "--period", "3", "--metrics-port", "0") as beside,
    ):
        assert beside.wait_for("metrics")
        addresses = {"triton:8002": served.report["metrics"], "triton:8003": beside.of("metrics")[0]["address"]}
        with (
            alertmanager(folder) as alerts,
            started(folder, "prometheus.yml", {**addresses, "alertmanager:9093": alerts}) as running,
        ):
            assert until(running.healthy)
            everything.ask_wrongly(served.report["grpc"])
            targets = [target.format(images=images) for target in everything.TARGETS]
            load = [sys.executable, str(ROOT / "deploy" / "demo_load.py"), f"--url=grpc://{served.report['grpc']}"]
            for _ in range(_BURSTS):
                subprocess.run([*load, "--rate=5", f"--seconds={_BURST_S}", *targets], check=True, timeout=120)
                if not _without_data(running):
                    break
            yield running
        # Not one request is left open by the clients, refused and streamed ones included.
        served.process.terminate()
        assert served.process.wait(60) == 0


@contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """The address of Alertmanager by the committed file; of nobody where it is not installed."""
    ports = choose_endpoints("127.0.0.1", 0, 0, 0)
    address = f"127.0.0.1:{ports.http}"
    if ALERTMANAGER is None:
        yield address
        return
    with (folder / "alertmanager.log").open("w") as log:
        process = subprocess.Popen(
            [
                ALERTMANAGER,
                f"--config.file={ROOT / 'deploy' / 'alertmanager' / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alerts'}",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield address
    finally:
        process.terminate()
        process.wait(30)


def test_every_query_returns_data(prometheus: Prometheus) -> None:
    assert len(_wanted()) > 100
    assert until(lambda: not _without_data(prometheus)), _without_data(prometheus)


def test_alerts_are_evaluated_and_nothing_is_down(prometheus: Prometheus) -> None:
    def rules() -> list[Any]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    assert until(lambda: all(rule["health"] == "ok" for rule in rules()))
    (written,) = documents("deploy/prometheus/alerts.yml")
    assert [rule["name"] for rule in rules()] == [rule["alert"] for rule in written["groups"][0]["rules"]]
    (down,) = (rule for rule in rules() if rule["name"] == "TidalServerDown")
    assert down["state"] == "inactive"


@pytest.mark.skipif(ALERTMANAGER is None, reason="no alertmanager on PATH: apt-get install prometheus-alertmanager")
def test_alerts_reach_alertmanager_and_their_receiver(prometheus: Prometheus) -> None:
    def address() -> str:
        active = prometheus.get("alertmanagers")["activeAlertmanagers"]
        return active[0]["url"].removesuffix("/api/v2/alerts") if active else ""

    assert until(lambda: bool(address()))
    labels = {"alertname": "TidalServerDown", "severity": "critical", "instance": "triton"}
    body = json.dumps([{"labels": labels}]).encode()
    posted = urllib.request.Request(f"{address()}/api/v2/alerts", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(posted, timeout=10) as response:
        assert response.status == 200

    def receivers() -> list[list[str]]:
        with urllib.request.urlopen(f"{address()}/api/v2/alerts", timeout=10) as response:
            return [[each["name"] for each in alert["receivers"]] for alert in json.load(response)]

    assert until(lambda: receivers() == [["pager"]])


def _wanted() -> dict[str, str]:
    """The queries of dashboards, by their text, each with its place."""
    return {query: where for where, query in queries() if not where.startswith("alert") and _served_here(query)}


def _without_data(prometheus: Prometheus) -> list[str]:
    # Within the last minutes: a plan after a period without queries has no demand.
    return [
        f"{where}: {query}"
        for query, where in _wanted().items()
        if not prometheus.values(f"last_over_time(({query})[10m:1s])")
    ]


def _served_here(query: str) -> bool:
    # `tidal controller` has no agent of its own: tests/cluster/test_served.py has the queries about agents.
    return "tidal_cluster_node_" not in query and (has_gpu() or not any(name in query for name in ON_GPUS))
