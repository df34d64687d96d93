"""A node that is no entrance, on real servers: its instances run queries of others, and its front refuses its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.clusters import LocalCluster, remote_instances, row
from testing.metrics import published
from testing.serving import tidal_in_process
from testing.waiting import until
from tests.arlo.conftest import LENGTHS
from tests.arlo.support import Traffic, make_texts
from tidal.controller.local_node import LocalNode
from tidal.controller.server_finder import ControlledServer
from tidal.repository.allocation import read_allocation
from tidal.repository.cluster_table import ClusterTable, read_cluster_table
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.local_http import open_url
from tidal.server.state import ServerState
from tidal_client import Client, RequestError

pytestmark = pytest.mark.server
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
TEXTS = make_texts(60, seed=3)


def refusal(grpc: str) -> str:
    """Return the error of a query to a server; empty if it is answered."""
    try:
        with Client(f"grpc://{grpc}", retries=0) as client:
            return "" if client.classify("tiny", "good").label else "no label"
    except RequestError as error:
        return str(error)


def logits(grpc: str) -> list[Any]:
    with Client(f"grpc://{grpc}", timeout_s=60) as client:
        return [answer.logits for answer in client.classify_many("tiny", TEXTS)]


def metric(server: ServerState, name: str, **labels: str) -> float:
    with open_url(f"http://{server.metrics}/metrics", 10) as response:
        return published(str(response.read().decode()), name, **labels)


def ran(server: ServerState) -> list[float]:
    """Queries that a server's instances have run, by runtime."""
    return [metric(server, "nv_inference_count", model=f"tiny_len{length}") for length in LENGTHS]


def used(now: Sequence[float], before: Sequence[float]) -> list[bool]:
    """Whether each runtime has run queries between two readings."""
    return [a > b for a, b in zip(now, before, strict=True)]


def held(counts: Sequence[int]) -> list[bool]:
    """Whether each runtime has an instance."""
    return [count > 0 for count in counts]


@pytest.fixture
def cluster(partitioned: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path / "all", tidal_in_process)
    try:
        running.run("up", "--local", "2", "--entrances", "1", str(partitioned), "--devices", "3")
        yield running
    finally:
        running.run("stop")


@needs_ray
def test_queries_at_the_entrance_run_on_both_nodes_and_the_other_node_refuses_its_own(cluster: LocalCluster) -> None:
    servers = {name: cluster.server(name) for name in ("n1", "n2")}
    entrance = f"n1 at {servers['n1'].grpc}"
    assert until(lambda: refusal(servers["n2"].grpc).endswith(f"send the request to an entrance: {entrance}"), 60)
    assert refusal(servers["n1"].grpc) == ""
    assert until(lambda: cluster.status()["plans"].get("tiny", {}).get("state") == "done", 60)
    assert until(lambda: [remote_instances(each, "tiny") for each in servers.values()] == [3, 0])
    state = cluster.status()
    assert [(each["node"], each["entrance"]) for each in state["nodes"]] == [("n1", True), ("n2", False)]
    found = [line.split()[:3] for line in cluster.run("status").splitlines()[1:4]]
    assert found == [["NODE", "STATE", "ENTRANCE"], ["n1", "serves", "yes"], ["n2", "serves", "no"]]
    for name in servers:  # gateways on both nodes use the entrance
        file = cluster.folder / "run" / "tidal" / "cluster" / "servers" / f"{name}.json"
        assert [each.partition(",")[0] for each in json.loads(file.read_text())["servers"]] == [servers["n1"].grpc]
    last = cluster.outcome("drain", "n1")
    assert (last.returncode, "'n1' is the last entrance" in last.stderr) == (1, True), last.stderr

    before = logits(servers["n1"].grpc)
    with Traffic(f"grpc://{servers['n1'].grpc}", "tiny") as load:
        # The device of n2 that held the longest runtime is used for another one.
        cluster.run("allocate", "tiny", "16=2", "32=3", "64=1")
        counts = {name: list(row(cluster.status(), name)["models"][0]["instances"].values()) for name in servers}
        assert [sum(column) for column in zip(*counts.values(), strict=True)] == [2, 3, 1]
        assert {name: (its[-1], sum(its)) for name, its in counts.items()} == {"n1": (1, 3), "n2": (0, 3)}
        before_ran = {name: ran(server) for name, server in servers.items()}
        assert until(
            lambda: all(used(ran(servers[name]), before_ran[name]) == held(counts[name]) for name in servers), 60
        )
        # Its server also starts without the longest runtime.
        killed = cluster.server("n2").server_pid
        os.kill(killed, signal.SIGKILL)
        assert until(lambda: cluster.server("n2").server_pid != killed)
        assert until(lambda: row(cluster.status(), "n2").get("state") == "serves")
        assert until(lambda: used(ran(cluster.server("n2")), [0, 0, 0]) == held(counts["n2"]), 90)
        assert until(lambda: remote_instances(servers["n1"], "tiny") == 3)
        answered = load.answered
        assert until(lambda: load.answered > answered + 50, 60)
    assert load.failures == []
    np.testing.assert_allclose(logits(servers["n1"].grpc), before, atol=1e-4)
    assert until(lambda: entrance in refusal(cluster.server("n2").grpc), 60)
    assert cluster.stop() == []


@pytest.fixture(scope="module")
def server(partitioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = shutil.copytree(partitioned, tmp_path_factory.mktemp("alone") / "models")
    with tidal_serve(folder, "--exit-timeout", "1") as running:
        yield running


def test_a_server_stops_being_an_entrance_under_load_and_serves_alone_again(server: RunningServer) -> None:
    def node(*, entrance: bool) -> LocalNode:
        found = ControlledServer(server.control, server.state)
        return LocalNode("a", lambda: found, "127.0.0.1", 3, entrance=entrance)

    folder, grpc = server.state.repository / "tiny", server.state.grpc
    holder = node(entrance=False)
    assert until(lambda: bool(holder.read().models), 30)  # Triton publishes metrics some seconds after a start
    (model,) = holder.read().models
    assert (model.instances, model.unfinished, model.problem) == ((1, 1, 1), True, None)  # it accepts queries yet
    before = logits(grpc)
    with Traffic(f"grpc://{grpc}", "tiny") as load:
        holder.allocate("tiny", {16: 1, 32: 2, 64: 0})
        assert until(lambda: load.failures)
        assert (allocation := read_allocation(folder)) is not None
        assert (allocation.entrance, allocation.instances[64]) == (False, 0)
    # Those that it had accepted were answered.
    refused = "this node is no entrance of its cluster and runs queries of other nodes only"
    assert {re.sub(".*this node", "this node", each) for each in load.failures} == {
        f"{refused}; send the request to an entrance: none is known"
    }
    assert load.answered + len(load.failures) == load.sent
    (model,) = holder.read().models
    assert (model.instances, model.usable, model.unfinished) == ((1, 2, 0), (1, 2, 0), False)
    assert metric(server.state, "tidal_arlo_instances", model="tiny") == 3
    assert metric(server.state, "tidal_arlo_instances", model="tiny", runtime="64") == 0
    holder.write_table("tiny", ClusterTable(nodes={}, entrances={"b": "10.0.0.2:8001"}))
    assert until(lambda: refusal(grpc).endswith("send the request to an entrance: b at 10.0.0.2:8001"))

    (model,) = node(entrance=True).read().models  # as one that joins again without the option
    assert (model.instances, model.unfinished) == ((1, 2, 1), True)
    holder.stand_alone("tiny")
    assert read_cluster_table(folder) == ClusterTable(nodes={})
    assert until(lambda: refusal(grpc) == "")
    np.testing.assert_allclose(logits(grpc), before, atol=1e-4)
    (model,) = holder.read().models
    assert (model.instances, model.unfinished) == ((1, 2, 1), False)
