"""A cluster of two real servers on this machine: its controller, its agents and its nodes fail, and no query does."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.clusters import LocalCluster, remote_instances, row, steady
from testing.gateways import RunningGateway, running_gateway
from testing.serving import serving, tidal_in_process
from testing.waiting import until
from tests.arlo.support import Traffic
from tests.cluster.pages import Values, of, read
from tests.deploy.prometheus import PROMETHEUS, started
from tests.deploy.queries import queries
from tidal.repository.cluster_table import ClusterTable, RemoteNode, read_cluster_table, write_cluster_table
from tidal.server.endpoints import choose_port
from tidal.server.state import ServerState
from tidal_client import Client

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
]

#: Of plans that are based on queries: tests/deploy/test_prometheus.py has them.
OF_QUERIES = ("demand_queries", "observed_latency_seconds", "predicted_latency_seconds")


def pages(state: dict[str, Any]) -> dict[str, Values]:
    """The pages of metrics of the controller and of all agents, at the addresses that the status shows."""
    names = ["controller", *(each["node"] for each in state["nodes"])]
    return {name: read(address) for name, address in zip(names, addresses(state), strict=True)}


def addresses(state: dict[str, Any]) -> list[str]:
    return [state["controller"]["metrics"], *(each["metrics"] for each in state["nodes"])]


def health(gateway: RunningGateway) -> tuple[int, int]:
    """Number of servers that a gateway uses, and of those that are up."""
    found = gateway.get("/health").json()
    return found["servers"], found["servers_up"]


def classified(gateway: RunningGateway) -> int:
    """Status of a request through a gateway."""
    return gateway.post("/v1/classify", {"model": "tiny", "input": "good"}).status_code


def check_pages(state: dict[str, Any], found: dict[str, Values]) -> None:
    """Compare the pages with the status of two nodes that serve."""
    controller = found["controller"]
    assert of(controller, "nodes", state="serves") == {"n1": 1, "n2": 1}
    assert of(controller, "table_outdated") == {"n1": 0, "n2": 0}
    assert of(controller, "planning_blocked") == {"tiny": 0}
    its = {name: row(state, name)["models"][0] for name in ("n1", "n2")}
    for name, model in its.items():
        assert of(found[name], "node_instances", model="tiny") == model["instances"]
        assert of(found[name], "node_server_up") == {"": 1}
    summed = {length: sum(model["instances"][length] for model in its.values()) for length in its["n1"]["instances"]}
    assert of(controller, "instances", model="tiny") == of(controller, "planned_instances", model="tiny") == summed
    assert of(controller, "devices") == {"tiny": 6}


def table_of(server: ServerState) -> ClusterTable:
    """Return what the controller wrote for the front of a server."""
    return read_cluster_table(server.repository / "tiny")


def start_of(page: Values, what: str) -> float:
    """Time of the last start of a controller or an agent."""
    (found,) = of(page, f"{what}_start_timestamp_seconds").values()
    return found


@pytest.fixture(scope="module")
def cluster(partitioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("cluster") / "all", tidal_in_process)
    try:
        running.run("up", "--local", "2", str(partitioned), "--devices", "3")
        assert until(lambda: steady(running.status(), "tiny"), 60)
        yield running
    finally:
        running.run("stop")


@pytest.mark.prometheus
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH: apt-get install prometheus")
def test_every_query_about_a_cluster_returns_data(cluster: LocalCluster, tmp_path: Path) -> None:
    state = cluster.status()
    head, *agents = addresses(state)
    targets = {"10.0.0.1:8005": head, "alertmanager:9093": "127.0.0.1:9"}
    for host, name, agent in zip(("10.0.0.2", "10.0.0.3"), ("n1", "n2"), agents, strict=True):
        targets |= {f"{host}:8002": cluster.server(name).metrics, f"{host}:8006": agent}
    about = [
        query
        for where, query in queries()
        if "tidal_cluster_" in query and not where.startswith("alert") and not any(name in query for name in OF_QUERIES)
    ]
    assert len(about) > 20
    with started(tmp_path, "cluster.yml", targets) as prometheus:
        assert until(prometheus.healthy)
        assert until(lambda: all(map(prometheus.values, about))), [
            query for query in about if not prometheus.values(query)
        ]
        (nodes,) = prometheus.values('sum(tidal_cluster_nodes{state="serves"})')
        assert nodes["value"][1] == "2"


def test_it_serves_through_every_failure_and_ends_without_a_trace(cluster: LocalCluster, tmp_path: Path) -> None:
    servers = {name: cluster.server(name) for name in ("n1", "n2")}
    entrances = cluster.folder / "run" / "tidal" / "cluster" / "servers" / "n1.json"
    before = cluster.status()
    with (
        Traffic(f"grpc://{servers['n1'].grpc}", "tiny") as first,
        Traffic(f"grpc://{servers['n2'].grpc}", "tiny") as second,
        running_gateway(tmp_path, "--servers-file", str(entrances)) as gateway,
    ):
        loads = first, second

        def answered(more: int) -> bool:
            counts = [load.answered for load in loads]
            return until(lambda: all(load.answered > n + more for load, n in zip(loads, counts, strict=True)))

        assert until(lambda: [remote_instances(each, "tiny") for each in servers.values()] == [3, 3])
        assert answered(50)
        assert until(lambda: gateway.ready() and health(gateway) == (2, 2))
        assert {classified(gateway) for _ in range(4)} == {200}
        # Both loads take as much as they get, so each entrance has about half of the queries.
        assert until(lambda: all(0.25 < table_of(each).share < 0.75 for each in servers.values()))
        assert [list(table_of(each).nodes) for each in servers.values()] == [["n2"], ["n1"]]

        first_pages = pages(before)
        check_pages(before, first_pages)
        for name in servers:  # the counts of Triton's page are some seconds late
            assert until(lambda name=name: sum(of(pages(before)[name], "node_queries_total").values()) >= 50)  # type: ignore[misc]
        assert until(lambda: sum(of(pages(before)["controller"], "queries_total").values()) >= 100)

        os.kill(before["controller"]["pid"], signal.SIGKILL)
        assert answered(20)
        assert until(lambda: cluster.status()["controller"]["pid"] != before["controller"]["pid"])
        assert until(lambda: steady(cluster.status(), "tiny"))
        after = cluster.status()
        assert after["plans"] == before["plans"]
        assert [each["models"][0]["instances"] for each in after["nodes"]] == [
            each["models"][0]["instances"] for each in before["nodes"]
        ]

        # Restarted processes publish at the same addresses.
        assert addresses(after) == addresses(before)
        check_pages(after, pages(after))
        assert start_of(pages(after)["controller"], "controller") > start_of(first_pages["controller"], "controller")
        assert of(pages(after)["controller"], "plan_timestamp_seconds") == of(
            first_pages["controller"], "plan_timestamp_seconds"
        )

        agent = row(after, "n2")["agent"]
        os.kill(agent, signal.SIGKILL)
        assert answered(20)
        assert until(
            lambda: row(cluster.status(), "n2").get("agent") not in (None, agent) and steady(cluster.status(), "tiny")
        )

        state = cluster.status()
        assert addresses(state) == addresses(before)
        assert start_of(pages(state)["n2"], "node") > start_of(first_pages["n2"], "node")

        assert json.loads(cluster.run("drain", "n2", "--json"))["drain"] == "drained"
        state = cluster.status()
        assert row(state, "n2")["models"][0]["instances"] == {"16": 0, "32": 0, "64": 1}
        assert row(state, "n1")["models"][0]["dispatches_to"] == []
        assert of(pages(state)["controller"], "nodes", state="drained") == {"n1": 0, "n2": 1}
        assert of(pages(state)["n2"], "node_draining") == {"": 1}
        assert of(pages(state)["n2"], "node_instances", model="tiny") == {"16": 0, "32": 0, "64": 1}
        assert of(pages(state)["n2"], "node_changes_total", model="tiny") == {"done": 1, "failed": 0}
        assert f"metrics: controller {addresses(state)[0]}, n1 " in cluster.run("status")
        # Its own clients are still served, also by instances of the other node, which uses none of it any more.
        assert until(lambda: [remote_instances(each, "tiny") for each in servers.values()] == [0, 3])
        assert answered(50)
        assert until(lambda: health(gateway) == (1, 1))  # the node that drains is no entrance any more
        assert classified(gateway) == 200
        assert "queries_per_s" in row(cluster.status(), "n1")["models"][0]

        wanted = {"16": 0, "32": 1, "64": 2}
        found = json.loads(cluster.run("allocate", "tiny", *(f"{n}={count}" for n, count in wanted.items()), "--json"))
        assert found == {"model": "tiny", "instances": wanted, "set": wanted}
        assert row(cluster.status(), "n1")["models"][0]["instances"] == wanted
        assert answered(20)
        refused = cluster.outcome("allocate", "tiny", "16=3")
        assert refused.returncode == 1
        assert "6 instances are set, and the devices of the nodes hold 3" in refused.stderr
    assert [load.failures for load in loads] == [[], []]

    assert len(cluster.processes("head", "n1", "n2")) > 8
    assert cluster.stop() == []


def test_a_server_that_joined_goes_on_when_the_cluster_ends(partitioned: Path, tmp_path: Path) -> None:
    one = LocalCluster(tmp_path / "cluster", tidal_in_process)
    repository = shutil.copytree(partitioned, tmp_path / "models")
    with serving(repository, tmp_path / "cluster" / "run", "--exit-timeout", "1") as served:
        refused = one.outcome("join", "127.0.0.1:1", "--name", "one")
        assert (refused.returncode, "no head answers at 127.0.0.1:1" in refused.stderr) == (1, True), refused.stderr
        try:
            head = json.loads(one.run("start", "--port", "0", "--metrics-port", "0", "--json"))
            address = head["address"]
            port = choose_port("127.0.0.1")
            one.run("join", address, "--name", "one", "--devices", "3", "--metrics-port", str(port))
            again = one.outcome("join", address, "--name", "one")
            assert (again.returncode, "'one' runs on this machine already" in again.stderr) == (1, True)
            # A node of another machine, whose entry the controller replaces.
            table = ClusterTable(nodes={"old": RemoteNode(grpc="127.0.0.1:9", instances={64: 1})})
            write_cluster_table(repository / "tiny", table)
            assert until(lambda: [each["state"] for each in one.status()["nodes"]] == ["serves"])
            assert until(lambda: one.status()["plans"].get("tiny", {}).get("state") == "done")
            assert until(lambda: read_cluster_table(repository / "tiny").nodes == {})
            assert addresses(one.status()) == [head["metrics"], f"127.0.0.1:{port}"]
            assert of(pages(one.status())["one"], "node_devices") == {"tiny": 3}
            text = one.run("status")
            assert text.splitlines()[1].split()[:5] == ["NODE", "STATE", "ENTRANCE", "DEVICES", "MODEL"]
            assert "there were no queries" in text
            controlled = tidal_in_process("controller", "--once", "--period", "1", environment=served.environment)
            assert "'tiny' is already controlled by process" in controlled.stderr
            wrong = one.outcome("drain", "two")
            assert "the cluster has no node 'two'; its nodes are one" in wrong.stderr
            last = one.outcome("drain", "one")
            assert (last.returncode, "node 'one' is the last one that does not drain" in last.stderr) == (1, True)
            # All of its Ray is killed: it joins again at once, under the same name.
            for process in one.ray_processes("one"):
                process.kill()
            lost = one.outcome("status", "--json")
            assert (lost.returncode, json.loads(lost.stdout)["nodes"][0]["node"]) == (0, "one")
            one.run("join", address, "--name", "one", "--devices", "2")
            assert until(lambda: one.status()["plans"]["tiny"]["devices"] == {"one": 2})
        finally:
            one.run("stop")
        with Client(f"grpc://{served.report['grpc']}") as client:
            assert client.classify("tiny", "good").label
