"""The cluster's controller with scaling over made-up nodes: devices and nodes that come, go and are lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import until
from tests.cluster.made_up import MODEL, OTHER, AgentsInProcess, FileServer
from tests.cluster.pages import of, values
from tidal.cluster import ray_node
from tidal.cluster.agent import NodeAgent
from tidal.cluster.autoscaling import NODE_RESOURCE
from tidal.commands.cluster_status import _scaling as notes
from tidal.controller import changes as module
from tidal.controller.controller import ClusterController
from tidal.controller.decisions import PlanSettings
from tidal.controller.scaling import ScalingSettings
from tidal.errors import Unavailable

PERIOD_S = 3600.0


class Cluster:
    """A controller with a clock of its own, and what it requested."""

    def __init__(self, agents: AgentsInProcess, scaling: ScalingSettings) -> None:
        self.agents, self.now = agents, 0.0
        self.requested: list[tuple[tuple[str, ...], int]] = []
        settings = PlanSettings(PERIOD_S, scaling=scaling)
        self.controller = ClusterController(
            agents, settings, clock=lambda: self.now, poll_s=0.01, request_nodes=self._request
        )

    def _request(self, hosts: Sequence[str], more: int) -> None:
        self.requested.append((tuple(hosts), more))

    def passes(self, count: int = 2) -> None:
        """Wait for passes that begin now."""
        target = self.controller._passes + count
        assert until(lambda: self.controller._passes >= target)

    def later(self, seconds: float) -> None:
        self.passes()
        self.now += seconds
        self.passes()

    def late(self, server: FileServer) -> None:
        """Let a node answer 100 queries too late, for 6 s."""
        self.passes()
        count = server.facts.get("requests", 0) + 100
        server.set(requests=count, slow=count, critical=count)
        self.later(6.0)

    def join(self, server: FileServer) -> None:
        name = server.folder.name
        self.agents.agents[name] = NodeAgent(server, server.folder / "memory.json", server.folder / "servers.json")

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.controller.status()
        return found

    @property
    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["plans"].get(MODEL, {})
        return found

    def node(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.status["nodes"] if each["node"] == name]
        return dict(found)


Start = Callable[..., Cluster]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(module, "_TABLE_READ_S", 0.0)
    running: list[Cluster] = []

    def begin(*servers: FileServer, **bounds: int) -> Cluster:
        running.append(Cluster(AgentsInProcess(*servers), ScalingSettings(**bounds)))
        assert until(lambda: running[-1].plan.get("state") == "done")
        return running[-1]

    yield begin
    for each in running:
        each.controller.close()


@pytest.fixture
def a(tmp_path: Path) -> FileServer:
    return FileServer.create(tmp_path / "a", (0, 0, 1), 2)


@pytest.fixture
def b(tmp_path: Path) -> FileServer:
    return FileServer.create(tmp_path / "b", (0, 0, 1), 2)


def counts(server: FileServer) -> int:
    return sum(server.facts["instances"])


def test_one_device_more_and_one_fewer(a: FileServer, start: Start) -> None:
    cluster = start(a)
    assert a.facts["instances"] == [0, 0, 1]  # the other device stays free
    cluster.late(a)
    assert until(lambda: a.facts["instances"] == [0, 0, 2])
    assert cluster.plan["trigger"] == "scaling"
    assert cluster.plan["reason"] == "the 98th percentile of the latency reached 95 % of the SLO"
    cluster.late(a)  # no device is free, and nodes are not scaled
    assert counts(a) == 2
    cluster.later(61.0)
    cluster.later(61.0)  # the first 60 s had late queries
    assert until(lambda: a.facts["instances"] == [0, 0, 1])
    assert cluster.plan["reason"] == "the 98th percentile of the latency stayed below 50 % of the SLO for 60 s"
    assert cluster.plan["observed_s"] == 134.0  # the period of the lengths goes on
    assert cluster.status["scaling"] == {"wanted_instances": {MODEL: 1}, "wanted_nodes": None, "reason": ""}
    assert cluster.requested == []


def test_other_models_keep_their_instances(a: FileServer, start: Start) -> None:
    a.set(devices=4, other=[0, 1, 1])
    cluster = start(a)
    assert until(lambda: set(cluster.status["plans"]) == {MODEL, OTHER})
    for _ in range(3):  # one device is free
        cluster.late(a)
        assert until(lambda: a.facts["instances"] == [0, 0, 2])
        assert a.facts["other"] == [0, 1, 1]
    assert cluster.agents.calls.count(("a", "allocate")) == 1
    assert cluster.status["scaling"]["wanted_instances"] == {MODEL: 2, OTHER: 2}


def test_latencies_before_a_change_do_not_count(a: FileServer, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(a)
    changed: list[str] = []
    monkeypatch.setattr(cluster.controller._scaling, "changed", lambda model, now: changed.append(model))
    cluster.late(a)
    assert until(lambda: counts(a) == 2)
    assert until(lambda: changed == [MODEL])


def test_nodes_have_the_resource_that_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("tidal.cluster.ray_node.subprocess.Popen", lambda command, **_: commands.append(command))
    started = [ray_node.start_node("10.0.0.1:6379", "10.0.0.2", None, {}), ray_node.start_head("127.0.0.1", 1, None)]
    for each in started:
        shutil.rmtree(each.folder)
    given = [word.partition("=")[2] for command in commands for word in command if word.startswith("--resources=")]
    assert [json.loads(each).get(NODE_RESOURCE) for each in given] == [1, None]


def test_one_node_more_and_one_fewer(a: FileServer, b: FileServer, start: Start) -> None:
    a.set(instances=[0, 0, 2])
    cluster = start(a, max_nodes=2)
    assert until(lambda: cluster.requested == [(("a",), 0)])
    cluster.late(a)
    assert until(lambda: cluster.requested[-1] == (("a",), 1))
    scaling = cluster.status["scaling"]
    assert (scaling["wanted_instances"], scaling["wanted_nodes"]) == ({MODEL: 3}, 2)
    reason = "'tiny' needs 3 instances, and the devices of the nodes hold 2"
    assert notes(cluster.status) == ["tiny: 3 instances are wanted", f"nodes: 2 are wanted; {reason}"]
    cluster.join(b)
    assert until(lambda: cluster.requested[-1] == (("a", "b"), 0))
    assert until(lambda: cluster.plan["instances"] == counts(a) + counts(b) == 3)
    cluster.late(a)
    assert until(lambda: counts(a) + counts(b) == 4)
    cluster.late(a)  # neither a device nor a node more
    assert cluster.status["scaling"]["wanted_nodes"] == 2
    for fewer in (3, 2):
        cluster.later(61.0)
        cluster.later(61.0)
        assert until(lambda fewer=fewer: counts(a) + counts(b) == fewer)  # type: ignore[misc]
    assert not any(each["released"] for each in cluster.status["nodes"])
    cluster.later(3 * PERIOD_S)
    cluster.later(3 * PERIOD_S)
    assert until(lambda: any(each["drain"] == "drained" for each in cluster.status["nodes"]))
    (gone,) = [each["node"] for each in cluster.status["nodes"] if each["released"]]
    stays = {"a": b, "b": a}[gone]
    assert until(lambda: cluster.requested[-1] == ((stays.folder.name,), 0))
    assert notes(cluster.status)[-1] == f"{gone}: may be removed: it is not required, and is drained"
    assert cluster.status["scaling"]["wanted_nodes"] == 1
    del cluster.agents.agents[gone]
    cluster.passes()
    assert cluster.controller._metrics._lost._value.get() == 0


def test_a_released_node_is_used_again_before_one_is_requested(a: FileServer, b: FileServer, start: Start) -> None:
    a.set(devices=1)
    cluster = start(a, b, max_nodes=3)
    cluster.later(61.0)  # one instance is enough
    cluster.agents.agents["b"].set_draining(True, True)
    assert until(lambda: cluster.node("b")["drain"] == "drained")
    requests = len(cluster.requested)
    cluster.late(a)
    assert until(lambda: cluster.node("b")["drain"] == "no")
    assert not cluster.node("b")["released"]
    assert all(more == 0 for _, more in cluster.requested[requests:])


def test_a_node_that_an_operator_drains_is_not_used_again(a: FileServer, b: FileServer, start: Start) -> None:
    a.set(devices=1)
    cluster = start(a, b, max_nodes=1)
    cluster.controller.drain("b", True)
    assert until(lambda: cluster.node("b")["drain"] == "drained")
    cluster.late(a)
    assert cluster.node("b")["drain"] == "drained"
    assert counts(a) == 1


def test_a_node_that_is_lost_is_requested_again(a: FileServer, b: FileServer, start: Start) -> None:
    a.set(instances=[0, 0, 2])
    cluster = start(a, b, max_nodes=2)
    assert cluster.status["scaling"]["wanted_instances"] == {MODEL: 3}
    cluster.agents.silent.add("b")
    requested = list(cluster.requested)
    cluster.late(a)  # nothing is decided while it may come back
    assert (cluster.requested, counts(a)) == (requested, 2)
    del cluster.agents.agents["b"]
    assert until(lambda: cluster.requested[-1] == (("a",), 1))
    assert counts(a) == 2
    cluster.agents.silent.clear()
    cluster.join(b)
    assert until(lambda: cluster.plan["devices"] == {"a": 2, "b": 2})
    assert until(lambda: counts(a) + counts(b) >= 3)


def test_a_restarted_controller_goes_on_with_the_last_number(a: FileServer, start: Start) -> None:
    first = start(a)
    first.late(a)
    assert until(lambda: counts(a) == 2 and first.plan["state"] == "done")
    first.controller.close()
    again = start(a)
    again.passes()
    assert again.status["scaling"]["wanted_instances"] == {MODEL: 2}
    assert counts(a) == 2


def test_a_request_that_is_refused_is_reported(a: FileServer, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(a, max_nodes=2)

    def refuse(hosts: Sequence[str], more: int) -> None:
        raise Unavailable("made-up refusal")

    monkeypatch.setattr(cluster.controller._scaling, "_request", refuse)
    a.set(devices=1)
    cluster.late(a)
    assert until(lambda: cluster.status["controller"]["waiting"] == {"": "made-up refusal"})


def test_wanted_instances_and_nodes_are_published(a: FileServer, start: Start) -> None:
    from prometheus_client import generate_latest

    cluster = start(a, max_nodes=2)
    cluster.passes()
    page = values(generate_latest(cluster.controller._metrics.registry).decode())
    assert of(page, "wanted_instances") == {MODEL: 1}
    assert of(page, "wanted_nodes") == {"": 1}
