"""The cluster's controller over made-up nodes, without Ray: what it decides, carries out, and waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import until
from tests.cluster.made_up import MODEL, PROFILE, AgentsInProcess, FileServer
from tidal.arlo.scheduling import AllocationProblem, RuntimeProfile, solve
from tidal.controller import changes as module
from tidal.controller.controller import ClusterController
from tidal.controller.decisions import PlanSettings
from tidal.errors import InvalidArgument, NotFound

Start = Callable[..., ClusterController]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start controllers with short pauses; they end with the test."""
    monkeypatch.setattr(module, "_TABLE_READ_S", 0.0)
    running: list[ClusterController] = []

    def begin(agents: AgentsInProcess, **settings: Any) -> ClusterController:
        running.append(ClusterController(agents, PlanSettings(**settings), poll_s=0.01, pause_s=0.05))
        return running[-1]

    yield begin
    for each in running:
        each.close()


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, FileServer]:
    return {name: FileServer.create(tmp_path / name) for name in ("a", "b")}


def plan_of(controller: ClusterController) -> dict[str, Any]:
    plan: dict[str, Any] = controller.status()["plans"].get(MODEL, {})
    return plan


def done(controller: ClusterController) -> bool:
    return plan_of(controller).get("state") == "done"


def waiting(controller: ClusterController) -> str:
    return "; ".join(controller.status()["controller"]["waiting"].values())


def test_fronts_dispatch_to_all_others_and_fitting_instances_stay(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    assert {name: each.table for name, each in nodes.items()} == {
        "a": {"b": {16: 1, 32: 1, 64: 1}},
        "b": {"a": {16: 1, 32: 1, 64: 1}},
    }
    assert plan_of(controller)["moves"] == 0
    assert all("history" not in each.facts for each in nodes.values())


def test_gateways_on_every_node_know_the_servers_that_do_not_drain(nodes: dict[str, FileServer], start: Start) -> None:
    agents = AgentsInProcess(*nodes.values())
    a, b = "a:1,status=a:2", "b:1,status=b:2"
    agents.call({"a": ("report",)}, 1.0)
    assert nodes["a"].servers == [a]  # alone until the controller knows it
    controller = start(agents)
    assert until(lambda: nodes["a"].servers == nodes["b"].servers == [a, b])
    agents.silent.add("b")  # its server may answer
    assert until(lambda: "waiting for b" in waiting(controller))
    assert nodes["a"].servers == [a, b]
    agents.silent.clear()
    nodes["b"].set(state="restarting")
    assert until(lambda: "waiting for b" in waiting(controller))
    assert nodes["a"].servers == [a, b]  # gateways wait for it, or use another
    nodes["b"].set(state="away")
    assert until(lambda: nodes["a"].servers == [a])
    nodes["b"].set(state="serves")
    assert until(lambda: nodes["a"].servers == [a, b])
    assert until(lambda: done(controller))
    controller.drain("b", True)
    assert until(lambda: nodes["a"].servers == nodes["b"].servers == [a])
    agents.agents["b"].leave([MODEL])
    assert nodes["b"].servers == [b]


def test_more_instances_than_devices_end(nodes: dict[str, FileServer], start: Start) -> None:
    nodes["a"].set(devices=1)
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    assert nodes["a"].facts["instances"] == [0, 0, 1]
    assert until(lambda: nodes["b"].table == {"a": {16: 0, 32: 0, 64: 1}})


def test_lengths_of_all_nodes_decide_after_a_period(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()), period_s=0.3)
    assert until(lambda: done(controller))
    nodes["a"].set(queries=[300.0, 0.0, 0.0])
    nodes["b"].set(queries=[0.0, 0.0, 100.0])
    assert until(lambda: plan_of(controller)["queries"] == {"16": 300.0, "32": 0.0, "64": 100.0})
    plan = plan_of(controller)
    assert until(lambda: done(controller))
    profiles = tuple(RuntimeProfile.from_service(each, PROFILE.slo_s, 1.0) for each in PROFILE.latencies_s)
    best = solve(AllocationProblem(6, profiles, tuple(plan["demand"].values()), 2)).instances
    assert 0 < best[0] < 6  # a would have short runtimes alone, b long ones
    counts = [each.facts["instances"] for each in nodes.values()]
    assert tuple(sum(column) for column in zip(*counts, strict=True)) == best


def test_nothing_is_decided_while_a_node_is_silent_and_its_table_entry_stays(
    nodes: dict[str, FileServer], start: Start
) -> None:
    agents = AgentsInProcess(*nodes.values())
    controller = start(agents)
    assert until(lambda: done(controller))
    agents.silent.add("b")
    assert until(lambda: "waiting for b" in waiting(controller))
    nodes["a"].set(devices=1)  # would be a reason for a plan
    agents.calls.clear()
    assert until(lambda: len(agents.calls) > 20)
    assert ("a", "allocate") not in agents.calls
    assert nodes["a"].table == {"b": {16: 1, 32: 1, 64: 1}}
    agents.silent.clear()
    assert until(lambda: nodes["a"].facts["instances"] == [0, 0, 1])


def test_a_restarted_controller_waits_for_a_report_of_every_node(nodes: dict[str, FileServer], start: Start) -> None:
    agents = AgentsInProcess(*nodes.values())
    agents.silent.add("b")
    controller = start(agents)
    assert until(lambda: waiting(controller) == "waiting for a first report of b")
    assert {method for _, method in agents.calls} == {"report"}


def test_a_restarted_controller_knows_the_last_plan_and_repeats_nothing(
    nodes: dict[str, FileServer], start: Start
) -> None:
    nodes["a"].set(devices=1)
    agents = AgentsInProcess(*nodes.values())
    first = start(agents)
    assert until(lambda: done(first))
    first.close()
    plan = plan_of(first)
    # Agents were restarted too: they read their memory.
    agents = AgentsInProcess(*nodes.values())
    again = start(agents)
    assert until(lambda: len(agents.calls) > 20)
    assert plan_of(again) == plan
    assert not any(method in ("allocate", "remember_plan") for _, method in agents.calls)


def test_a_server_that_is_being_restarted_keeps_its_part(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    nodes["b"].set(state="restarting")
    assert until(lambda: "waiting for b: made up" in waiting(controller))
    assert nodes["a"].table == {"b": {16: 1, 32: 1, 64: 1}}
    (row,) = [each for each in controller.status()["nodes"] if each["node"] == "b"]
    assert row["state"] == "restarting"
    nodes["b"].set(state="away")
    assert until(lambda: nodes["a"].table == {})
    assert until(lambda: plan_of(controller)["devices"] == {"a": 3})


def test_a_failed_change_is_reported_and_tried_again(nodes: dict[str, FileServer], start: Start) -> None:
    nodes["a"].set(devices=1, refuse=True)
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: "failed: a: made-up failure" in plan_of(controller).get("state", ""))
    assert until(lambda: "a: made-up failure" in waiting(controller))
    nodes["a"].set(refuse=False)
    assert until(lambda: done(controller))
    assert nodes["a"].facts["instances"] == [0, 0, 1]


def test_an_interrupted_change_is_finished_first(nodes: dict[str, FileServer], start: Start) -> None:
    nodes["a"].set(unfinished=True)
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    assert nodes["a"].facts["history"] == [[1, 1, 1]]


def test_a_defect_is_reported_and_control_goes_on(
    nodes: dict[str, FileServer], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = AgentsInProcess(*nodes.values())
    monkeypatch.setattr(agents, "names", lambda: 1 / 0)
    controller = start(agents)
    assert until(lambda: "the controller failed, see its log: ZeroDivisionError" in waiting(controller))
    monkeypatch.undo()
    assert until(lambda: done(controller) and waiting(controller) == "")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"problem": "'tiny' is already controlled by process 7"}, "b: 'tiny' is already controlled by process 7"),
        ({"version": 2}, "the nodes serve different versions: a serves 1, b serves 2"),
    ],
)
def test_a_model_that_cannot_be_controlled_is_left_alone(
    nodes: dict[str, FileServer], start: Start, facts: dict[str, Any], reason: str
) -> None:
    nodes["b"].set(**facts)
    agents = AgentsInProcess(*nodes.values())
    controller = start(agents)
    assert until(lambda: waiting(controller) == reason)
    assert not any(method == "allocate" for _, method in agents.calls)


class TestDraining:
    def drain_of(self, controller: ClusterController, name: str) -> str:
        (row,) = [each for each in controller.status()["nodes"] if each["node"] == name]
        return str(row["drain"])

    def test_instances_move_and_no_front_dispatches_to_it(self, nodes: dict[str, FileServer], start: Start) -> None:
        controller = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: done(controller))
        nodes["a"].set(devices=5)
        controller.drain("b", True)
        assert until(lambda: self.drain_of(controller, "b") == "drained")
        assert nodes["b"].facts["instances"] == [0, 0, 1]
        assert sum(nodes["a"].facts["instances"]) == 5
        assert nodes["a"].table == {}
        assert "a" in nodes["b"].table  # its own queries still run on other nodes
        controller.drain("b", False)
        assert until(lambda: nodes["a"].table.keys() == {"b"} and sum(nodes["b"].facts["instances"]) == 3)
        assert self.drain_of(controller, "b") == "no"

    def test_it_stays_drained_over_restarts(self, nodes: dict[str, FileServer], start: Start) -> None:
        first = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: done(first))
        first.drain("b", True)
        assert until(lambda: self.drain_of(first, "b") == "drained")
        first.close()
        again = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: self.drain_of(again, "b") == "drained")
        assert nodes["a"].table == {}

    def test_bad_nodes_are_named(self, nodes: dict[str, FileServer], start: Start) -> None:
        controller = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: done(controller))
        with pytest.raises(NotFound, match="the cluster has no node 'z'; its nodes are a, b"):
            controller.drain("z", True)
        controller.drain("b", True)
        with pytest.raises(InvalidArgument, match="node 'a' is the last one that does not drain"):
            controller.drain("a", True)
