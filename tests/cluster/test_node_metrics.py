"""The metrics of a node's agent, and where an actor serves its metrics."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.cluster.made_up import MODEL, FileServer
from tests.cluster.pages import of, read
from tidal.cluster.agent import NodeAgent
from tidal.controller.metrics_page import MetricsPage, PageAddress
from tidal.errors import Unavailable
from tidal.repository.cluster_table import ClusterTable


class TestAgent:
    """The page of an agent of a made-up node."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> FileServer:
        return FileServer.create(tmp_path / "a")

    @pytest.fixture
    def agent(self, server: FileServer) -> NodeAgent:
        return NodeAgent(
            server, server.folder / "memory.json", server.folder / "servers.json", PageAddress("127.0.0.1", 0)
        )

    def test_what_the_node_has_and_has_done(self, server: FileServer, agent: NodeAgent) -> None:
        server.set(instances=(2, 0, 1), devices=4, queries=[7.0, 0.0, 3.0], busy_s=[0.5, 0.0, 1.5])
        report = agent.report()
        found = read(report.metrics)
        assert of(found, "node_server_up") == {"": 1}
        assert of(found, "node_draining") == {"": 0}
        assert of(found, "node_devices") == {MODEL: 4}
        assert of(found, "node_instances", model=MODEL) == {"16": 2, "32": 0, "64": 1}
        assert of(found, "node_queries_total", model=MODEL) == {"16": 7, "32": 0, "64": 3}
        assert of(found, "node_busy_seconds_total", model=MODEL) == {"16": 0.5, "32": 0, "64": 1.5}

    def test_changes_and_draining(self, server: FileServer, agent: NodeAgent) -> None:
        address = agent.report().metrics
        assert of(read(address), "node_changes_total", model=MODEL) == {"done": 0, "failed": 0}
        agent.allocate(MODEL, {16: 1, 32: 0, 64: 1})
        server.set(refuse=True)
        with pytest.raises(Unavailable):
            agent.allocate(MODEL, {16: 1, 32: 0, 64: 1})
        agent.set_draining(True)
        found = read(address)
        assert of(found, "node_changes_total", model=MODEL) == {"done": 1, "failed": 1}
        assert of(found, "node_draining") == {"": 1}

    def test_it_reads_the_server_itself_while_no_controller_does(
        self, server: FileServer, agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = agent.report().metrics
        controlled = of(read(address), "node_read_timestamp_seconds")[""]
        monkeypatch.setattr("tidal.cluster.agent._REPORT_AGE_S", 0.0)
        server.set(state="away")
        found = read(address)
        assert of(found, "node_server_up") == {"": 0}
        assert of(found, "node_read_timestamp_seconds") == {"": controlled}
        agent.report()
        assert of(read(address), "node_read_timestamp_seconds")[""] > controlled

    def test_times_begin_with_the_agent(self, server: FileServer, agent: NodeAgent) -> None:
        before = time.time()
        address = agent.report().metrics
        found = read(address)
        (started,) = of(found, "node_start_timestamp_seconds").values()
        assert started <= before
        assert of(found, "node_table_timestamp_seconds") == {"": started}
        agent.write_tables({MODEL: ClusterTable(nodes={})}, ())
        assert of(read(address), "node_table_timestamp_seconds")[""] >= before


class TestPage:
    """Where metrics are served."""

    @pytest.fixture
    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        Gauge("tidal_cluster_made_up", "A made-up value", registry=registry).set(3)
        return registry

    def test_it_serves_once_its_address_is_free(
        self, registry: CollectorRegistry, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            page = MetricsPage(registry, PageAddress("127.0.0.1", port))
            assert [page.serve(), page.serve()] == ["", ""]
        line = f"--metrics-port {port} is in use: choose another port, or 0 for a free one\n"
        assert capsys.readouterr().err == line
        assert page.serve() == page.serve() == f"127.0.0.1:{port}"
        assert of(read(page.serve()), "made_up") == {"": 3}
        page.close()
        assert page.serve() == ""
        again = MetricsPage(registry, PageAddress("127.0.0.1", port))  # as a restarted actor
        assert again.serve() == f"127.0.0.1:{port}"
        again.close()

    def test_without_an_address_it_serves_nothing(self, registry: CollectorRegistry) -> None:
        assert MetricsPage(registry, None).serve() == ""
