"""Nodes that are no entrances, without servers: what the controller decides about them, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import until
from tests.cluster.made_up import MODEL, PROFILE, AgentsInProcess, FileServer
from tests.cluster.test_affinity import Cluster, order
from tests.cluster.test_controller import Start, done, plan_of, start, waiting
from tidal.arlo.scheduling import AllocationProblem, RuntimeProfile, solve
from tidal.cluster import membership
from tidal.cluster.agent import NodeAgent
from tidal.commands.cluster_status import _notes as notes
from tidal.controller.controller import ClusterController
from tidal.controller.scaling import ModelScaler, NodePlan, NodeScaler, NodeUse, ScalingSettings
from tidal.errors import InvalidArgument, Unavailable
from tidal.repository.cluster_table import read_cluster_table

__all__ = ["start"]  # a fixture


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, FileServer]:
    """Queries may arrive at `a` alone."""
    found = {name: FileServer.create(tmp_path / name) for name in ("a", "b", "c")}
    for name in ("b", "c"):
        found[name].set(entrance=False)
    return found


def instances(nodes: dict[str, FileServer]) -> list[list[int]]:
    return [each.facts["instances"] for each in nodes.values()]


def dispatches(controller: ClusterController) -> list[list[str]]:
    return [each["models"][0]["dispatches_to"] for each in controller.status()["nodes"]]


def drain_of(controller: ClusterController, name: str) -> str:
    (row,) = [each for each in controller.status()["nodes"] if each["node"] == name]
    return str(row["drain"])


def test_their_devices_are_used_for_what_the_queries_need(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()), period_s=0.3)
    assert until(lambda: done(controller))
    assert instances(nodes) == [[1, 1, 1]] * 3  # without queries nothing changes
    nodes["a"].set(queries=[3000.0, 300.0, 1.0])
    assert until(lambda: plan_of(controller)["queries"] == {"16": 3000.0, "32": 300.0, "64": 1.0} and done(controller))
    plan = plan_of(controller)
    profiles = tuple(RuntimeProfile.from_service(each, PROFILE.slo_s, 1.0) for each in PROFILE.latencies_s)
    best = solve(AllocationProblem(9, profiles, tuple(plan["demand"].values()), 1)).instances
    assert best[-1] == 1  # three entrances would need three
    assert tuple(sum(column) for column in zip(*instances(nodes), strict=True)) == best
    assert nodes["a"].facts["instances"][-1] == 1
    assert plan["entrances"] == ["a"]


def test_fronts_of_the_entrance_use_them_and_their_own_know_the_entrance(
    nodes: dict[str, FileServer], start: Start
) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    assert until(lambda: nodes["a"].table == {name: {16: 1, 32: 1, 64: 1} for name in "bc"})
    for name in ("b", "c"):
        table = read_cluster_table(nodes[name].folder)
        assert (table.nodes, table.entrances) == ({}, {"a": "a:1"})
        assert nodes[name].servers == ["a:1,status=a:2"]  # gateways there use the entrance
    assert nodes["a"].servers == ["a:1,status=a:2"]
    assert [each["entrance"] for each in controller.status()["nodes"]] == [True, False, False]
    assert until(lambda: dispatches(controller) == [["b", "c"], [], []])


def test_an_agent_writes_no_server_for_gateways_that_would_refuse_their_queries(nodes: dict[str, FileServer]) -> None:
    AgentsInProcess(*nodes.values()).call(dict.fromkeys(nodes, ("report",)), 1.0)
    assert [each.servers for each in nodes.values()] == [["a:1,status=a:2"], [], []]


def test_they_are_drained_whole_and_the_last_entrance_is_not(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    with pytest.raises(InvalidArgument, match=r"'a' is the last entrance that does not drain.*without --no-entrance"):
        controller.drain("a", True)
    controller.drain("b", True)
    assert until(lambda: drain_of(controller, "b") == "drained")
    assert nodes["b"].facts["instances"] == [0, 0, 0]
    assert nodes["a"].table.keys() == {"c"}


def test_without_its_entrance_the_cluster_keeps_its_instances_and_says_so(
    nodes: dict[str, FileServer], start: Start
) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    assert not any("no node is an entrance" in line for line in notes(shown(controller)))
    nodes["a"].set(state="away")
    assert until(lambda: plan_of(controller)["devices"] == {"b": 3, "c": 3} and done(controller))
    assert sum(row[-1] for row in instances(nodes)[1:]) >= 1
    assert any(line.startswith("no node is an entrance, so no query is accepted") for line in notes(shown(controller)))
    assert until(lambda: not read_cluster_table(nodes["b"].folder).entrances)
    nodes["a"].set(state="serves")
    assert until(lambda: nodes["a"].table.keys() == {"b", "c"} and waiting(controller) == "")


def shown(controller: ClusterController) -> dict[str, Any]:
    return {"address": "h:1", **controller.status()}


def test_set_instances_need_one_of_the_longest_runtime_per_entrance(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    with pytest.raises(InvalidArgument, match="of the longest runtime at least 1, one for each entrance"):
        controller.allocate(MODEL, {16: 8})
    controller.allocate(MODEL, {16: 8, 64: 1})
    assert until(lambda: instances(nodes) == [[2, 0, 1], [3, 0, 0], [3, 0, 0]])


def test_a_node_that_becomes_an_entrance_gets_the_longest_runtime(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    controller.allocate(MODEL, {16: 8, 64: 1})
    assert until(lambda: instances(nodes)[1] == [3, 0, 0])
    controller.allocate(MODEL, None)
    assert until(lambda: plan_of(controller)["set"] is None and done(controller))
    nodes["b"].set(entrance=True)
    assert until(lambda: instances(nodes)[1][-1] == 1 and done(controller))
    assert (plan_of(controller)["trigger"], plan_of(controller)["entrances"]) == ("devices", ["a", "b"])
    assert all(sum(row) <= 3 for row in instances(nodes))


def test_a_node_that_leaves_serves_alone(nodes: dict[str, FileServer]) -> None:
    agent = NodeAgent(nodes["b"], nodes["b"].folder / "memory.json", nodes["b"].folder / "servers.json")
    agent.leave([MODEL])
    assert nodes["b"].facts["entrance"]
    assert nodes["b"].servers == ["b:1,status=b:2"]


def test_no_node_is_assigned_to_them_whatever_arrived_there_before() -> None:
    cluster = Cluster()
    cluster.entrances(a=10.0, b=10.0)
    nodes = {name: replace(each, entrance=name == "a") for name, each in cluster.nodes.items()}
    found = cluster.affinity.entrances(nodes, cluster.load)[MODEL]
    assert found.ranks.keys() == found.shares.keys() == {"a"}
    assert (order(found.ranks["a"]), found.shares["a"]) == ("bcdef", 1.0)


class TestScaling:
    def test_each_entrance_keeps_an_instance_and_other_nodes_none(self) -> None:
        for entrances, fewest in ((1, 1), (2, 2), (4, 4)):
            scaler = ModelScaler(0.4, ScalingSettings(), 1)
            assert scaler.decide(0.0, 12, entrances, more_nodes=False) == fewest

    def test_the_last_entrance_is_not_released(self) -> None:
        def node(busy: float, *, entrance: bool) -> NodeUse:
            return NodeUse({"m": 3}, {"m": 1}, busy, entrance=entrance)

        nodes = {"a": node(0.0, entrance=True), "b": node(1.0, entrance=False)}
        assert NodeScaler(1, 4, 0.0).decide(0.0, nodes, {"m": 2}).release == "b"
        nodes["b"] = node(1.0, entrance=True)
        assert NodeScaler(1, 4, 0.0).decide(0.0, nodes, {"m": 2}).release == "a"
        alone = {"a": node(0.0, entrance=True)}
        assert NodeScaler(1, 4, 0.0).decide(0.0, alone, {"m": 1}) == NodePlan(1)


@pytest.mark.parametrize(
    ("others", "accepted"),
    [
        ([], False),
        ([{"node": "b", "state": "serves", "entrance": True, "drain": "no"}], False),  # itself, from before
        ([{"node": "a", "state": "silent", "reason": "lost"}], False),
        ([{"node": "a", "state": "serves", "entrance": False, "drain": "no"}], False),
        ([{"node": "a", "state": "serves", "entrance": True, "drain": "drained"}], False),
        ([{"node": "a", "state": "away", "entrance": True, "drain": "no"}], False),
        ([{"node": "a", "state": "restarting", "entrance": True, "drain": "no"}], True),
    ],
)
def test_a_cluster_needs_an_entrance_before_nodes_that_are_none(
    monkeypatch: pytest.MonkeyPatch, others: list[dict[str, Any]], accepted: bool
) -> None:
    monkeypatch.setattr(membership, "call_controller", lambda method: {"nodes": others})
    if accepted:
        membership._check_entrance("b")
        return
    with pytest.raises(Unavailable, match="--no-entrance: the cluster has no entrance, so no query could reach this"):
        membership._check_entrance("b")
