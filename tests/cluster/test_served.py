"""A cluster of two real servers on this machine: its controller, its agents and its nodes fail, and no query does."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.clusters import LocalCluster, remote_instances, row, steady
from testing.serving import serving, tidal_in_process
from testing.waiting import until
from tests.arlo.support import Traffic
from tidal.repository.cluster_table import ClusterTable, RemoteNode, read_cluster_table, write_cluster_table
from tidal_client import Client

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
]


@pytest.fixture(scope="module")
def cluster(partitioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("cluster") / "all", tidal_in_process)
    try:
        running.run("up", "--local", "2", str(partitioned), "--devices", "3")
        assert until(lambda: steady(running.status(), "tiny"), 60)
        yield running
    finally:
        running.run("stop")


def test_it_serves_through_every_failure_and_ends_without_a_trace(cluster: LocalCluster) -> None:
    servers = {name: cluster.server(name) for name in ("n1", "n2")}
    before = cluster.status()
    with (
        Traffic(f"grpc://{servers['n1'].grpc}", "tiny") as first,
        Traffic(f"grpc://{servers['n2'].grpc}", "tiny") as second,
    ):
        loads = first, second

        def answered(more: int) -> bool:
            counts = [load.answered for load in loads]
            return until(lambda: all(load.answered > n + more for load, n in zip(loads, counts, strict=True)))

        assert until(lambda: [remote_instances(each, "tiny") for each in servers.values()] == [3, 3])
        assert answered(50)

        os.kill(before["controller"]["pid"], signal.SIGKILL)
        assert answered(20)
        assert until(lambda: cluster.status()["controller"]["pid"] != before["controller"]["pid"])
        assert until(lambda: steady(cluster.status(), "tiny"))
        after = cluster.status()
        assert after["plans"] == before["plans"]
        assert [each["models"][0]["instances"] for each in after["nodes"]] == [
            each["models"][0]["instances"] for each in before["nodes"]
        ]

        agent = row(after, "n2")["agent"]
        os.kill(agent, signal.SIGKILL)
        assert answered(20)
        assert until(
            lambda: row(cluster.status(), "n2").get("agent") not in (None, agent) and steady(cluster.status(), "tiny")
        )

        assert json.loads(cluster.run("drain", "n2", "--json"))["drain"] == "drained"
        state = cluster.status()
        assert row(state, "n2")["models"][0]["instances"] == {"16": 0, "32": 0, "64": 1}
        assert row(state, "n1")["models"][0]["dispatches_to"] == []
        # Its own clients are still served, also by instances of the other node, which uses none of it any more.
        assert until(lambda: [remote_instances(each, "tiny") for each in servers.values()] == [0, 3])
        assert answered(50)
        assert "queries_per_s" in row(cluster.status(), "n1")["models"][0]
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
            address = json.loads(one.run("start", "--port", "0", "--json"))["address"]
            one.run("join", address, "--name", "one", "--devices", "3")
            again = one.outcome("join", address, "--name", "one")
            assert (again.returncode, "'one' runs on this machine already" in again.stderr) == (1, True)
            # A node of another machine, whose entry the controller replaces.
            table = ClusterTable(nodes={"old": RemoteNode(grpc="127.0.0.1:9", instances={64: 1})})
            write_cluster_table(repository / "tiny", table)
            assert until(lambda: [each["state"] for each in one.status()["nodes"]] == ["serves"])
            assert until(lambda: one.status()["plans"].get("tiny", {}).get("state") == "done")
            assert until(lambda: read_cluster_table(repository / "tiny").nodes == {})
            text = one.run("status")
            assert text.splitlines()[1].split()[:4] == ["NODE", "STATE", "DEVICES", "MODEL"]
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
