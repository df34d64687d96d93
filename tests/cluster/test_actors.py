"""The agents and the controller as actors of a real Ray, over made-up servers: named, restarted, and removed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testing.waiting import until
from tests.cluster.made_up import MODEL, FileServer
from tests.cluster.one_node import ray_of_one_node
from tidal.cluster import ray_node
from tidal.cluster.autoscaling import NODE_RESOURCE
from tidal.cluster.connection import LOOPBACK, call_controller
from tidal.cluster.handles import RayAgents, agent_name
from tidal.controller.decisions import PlanSettings
from tidal.controller.scaling import ScalingSettings
from tidal.errors import InvalidArgument, NotFound, Unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def ray(folder: Path) -> Iterator[Any]:
    """A Ray of one node on the loopback interface with a secret, a controller, and the agents of nodes a and b."""
    with ray_of_one_node(folder) as (module, started, node_id):
        for name in ("a", "b"):
            server = FileServer.create(folder / name)
            memory, servers = folder / f"{name}.json", folder / f"{name}-servers.json"
            ray_node.start_agent(module, node_id, server, name, memory, servers)
        # As many instances as the devices of both hold.
        scaling = ScalingSettings(min_instances=6, max_nodes=3)
        ray_node.start_controller(module, started, PlanSettings(period_s=3600, scaling=scaling))
        yield module


@pytest.fixture
def nodes(ray: Any, folder: Path) -> dict[str, FileServer]:
    """The nodes, once the controller has reported both and their plan is done."""
    assert until(steady)
    return {name: FileServer(folder / name) for name in ("a", "b")}


def steady() -> bool:
    state = status()
    plan = state["plans"].get(MODEL, {})
    rows = state["nodes"]
    return [row["state"] for row in rows] == ["serves", "serves"] and plan.get("state") == "done"


def status() -> dict[str, Any]:
    try:
        state: dict[str, Any] = call_controller("status")
    except Unavailable:  # it is being restarted
        return {"nodes": [], "plans": {}}
    return state


def agent_of(name: str) -> int:
    return next((int(row["agent"]) for row in status()["nodes"] if row["node"] == name and row["agent"]), 0)


def test_nodes_dispatch_to_each_other(nodes: dict[str, FileServer]) -> None:
    assert RayAgents().names() == ["a", "b"]
    assert until(lambda: set(nodes["a"].table) == {"b"} and set(nodes["b"].table) == {"a"})


def test_a_killed_controller_reports_the_same_after_its_restart(nodes: dict[str, FileServer]) -> None:
    before = status()
    os.kill(before["controller"]["pid"], signal.SIGKILL)
    assert until(lambda: status().get("controller", {}).get("pid") not in (None, before["controller"]["pid"]))
    assert until(steady)
    after = status()
    assert after["plans"] == before["plans"]
    same = ("node", "state", "drain", "agent", "grpc")
    assert [{key: row[key] for key in same} for row in after["nodes"]] == [
        {key: row[key] for key in same} for row in before["nodes"]
    ]


def test_a_killed_agent_is_restarted_and_keeps_its_memory(nodes: dict[str, FileServer]) -> None:
    call_controller("drain", "b", True)
    assert until(lambda: [row["drain"] for row in status()["nodes"]] == ["no", "drained"])
    pid = agent_of("b")
    table = nodes["b"].table
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: agent_of("b") not in (0, pid))
    assert until(steady)
    assert [row["drain"] for row in status()["nodes"]] == ["no", "drained"]
    assert nodes["b"].table == table
    call_controller("drain", "b", False)
    assert until(lambda: [row["drain"] for row in status()["nodes"]] == ["no", "no"])
    assert until(lambda: sum(nodes["b"].facts["instances"]) == 3)


def test_errors_of_agents_and_controller_keep_their_class(nodes: dict[str, FileServer]) -> None:
    with pytest.raises(NotFound, match="the cluster has no node 'z'; its nodes are a, b"):
        call_controller("drain", "z", True)
    nodes["a"].set(refuse=True)
    try:
        answers = RayAgents().call({"a": ("allocate", MODEL, {16: 1, 32: 1, 64: 1}), "z": ("report",)}, 10)
    finally:
        nodes["a"].set(refuse=False)
    assert {name: type(error) for name, error in answers.items()} == {"a": Unavailable, "z": Unavailable}
    assert str(answers["a"]) == "made-up failure"
    assert "node 'z' has no agent" in str(answers["z"])


def test_a_name_that_is_in_use_is_refused(ray: Any, nodes: dict[str, FileServer], folder: Path) -> None:
    node_id = ray.get_runtime_context().get_node_id()
    with pytest.raises(Unavailable, match="the cluster has a node 'a' already"):
        ray_node.start_agent(ray, node_id, nodes["a"], "a", folder / "a.json", folder / "a-servers.json")


def test_a_node_that_leaves_is_in_no_table_and_its_own_is_empty(
    ray: Any, nodes: dict[str, FileServer], folder: Path
) -> None:
    third = FileServer.create(folder / "c")
    ray_node.start_agent(
        ray, ray.get_runtime_context().get_node_id(), third, "c", folder / "c.json", folder / "c-servers.json"
    )
    assert until(lambda: set(nodes["a"].table) == {"b", "c"} and set(third.table) == {"a", "b"})
    agent = ray.get_actor(agent_name("c"))
    ray.get(agent.leave.remote([MODEL]))
    assert third.table == {}
    ray.kill(agent)
    assert until(lambda: set(nodes["a"].table) == {"b"})
    assert third.table == {}
    assert until(steady)


def test_it_listens_on_the_loopback_interface_alone(ray: Any, nodes: dict[str, FileServer]) -> None:
    raylet = psutil.Process(agent_of("a")).parent()
    assert raylet is not None
    launcher = raylet.parent()
    assert launcher is not None
    processes = [launcher, *launcher.children(recursive=True)]
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {LOOPBACK}


def test_another_secret_is_refused(ray: Any, nodes: dict[str, FileServer], folder: Path) -> None:
    (folder / "wrong").write_text("0" * 64)
    code = (
        "import sys\nfrom pathlib import Path\nfrom tidal.cluster.connection import connected\n"
        "from tidal.errors import Unavailable\n"
        "try:\n    with connected(sys.argv[1], '127.0.0.1', Path(sys.argv[2])):\n        print('accepted')\n"
        "except Unavailable as error:\n    print(error)\n"
    )
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", code, address, str(folder / "wrong")]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert f"the head at {address} does not accept this machine" in outcome.stdout
    assert outcome.stdout.endswith(f"check that its secret is in {folder / 'wrong'}\n")


def test_all_nodes_cannot_drain(nodes: dict[str, FileServer]) -> None:
    call_controller("drain", "b", True)
    try:
        with pytest.raises(InvalidArgument, match="node 'a' is the last one that does not drain"):
            call_controller("drain", "a", True)
    finally:
        call_controller("drain", "b", False)


def test_a_head_without_an_autoscaler_notes_the_requested_nodes(ray: Any, nodes: dict[str, FileServer]) -> None:
    from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    def requested() -> Any:
        return json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or "null")

    present = [{f"node:{name}": 0.001, NODE_RESOURCE: 1} for name in ("a", "b")]
    assert until(lambda: requested() == present)
    call_controller("drain", "b", True)  # 6 instances need another node
    try:
        assert until(lambda: requested() == [*present, {NODE_RESOURCE: 1}])
        assert status()["scaling"]["wanted_nodes"] == 2
    finally:
        call_controller("drain", "b", False)
    assert until(lambda: requested() == present)
    assert until(lambda: sum(nodes["b"].facts["instances"]) == 3)
