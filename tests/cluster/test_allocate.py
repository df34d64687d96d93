"""Instances that an operator sets on all nodes together: placed, kept, and given back to the controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.waiting import until
from tests.cluster.made_up import LENGTHS, MODEL, AgentsInProcess, FileServer
from tests.cluster.test_controller import Start, done, nodes, plan_of, start, waiting
from tidal.commands.cluster_allocate import carried_out, instances_of
from tidal.controller.controller import ClusterController
from tidal.errors import InvalidArgument, NotFound

__all__ = ["nodes", "start"]  # fixtures


def totals(nodes: dict[str, FileServer]) -> list[int]:
    return [sum(column) for column in zip(*(each.facts["instances"] for each in nodes.values()), strict=True)]


def has(controller: ClusterController, counts: list[int] | None) -> bool:
    wanted = None if counts is None else dict(zip(LENGTHS, counts, strict=True))
    return carried_out(plan_of(controller), wanted)


def some_passes(controller: ClusterController) -> None:
    passes = controller._passes
    assert until(lambda: controller._passes > passes + 10)


def test_they_are_placed_and_stay_until_they_are_given_back(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()), period_s=0.2)
    assert until(lambda: done(controller))
    controller.allocate(MODEL, {16: 0, 32: 1, 64: 2})
    assert until(lambda: has(controller, [0, 1, 2]))
    assert totals(nodes) == [0, 1, 2]
    assert (plan_of(controller)["trigger"], plan_of(controller)["set"]) == ("set", {"16": 0, "32": 1, "64": 2})
    # Queries of the shortest runtime, over several periods: nothing is decided.
    at = plan_of(controller)["at"]
    for second in range(1, 6):
        nodes["a"].set(queries=[100.0 * second, 0.0, 0.0], seconds=0.2 * second)
        some_passes(controller)
    assert (totals(nodes), plan_of(controller)["at"]) == ([0, 1, 2], at)
    controller.allocate(MODEL, None)
    assert until(lambda: has(controller, None) and sum(totals(nodes)) == 6)
    assert plan_of(controller)["set"] is None


def test_a_runtime_that_is_left_out_has_none(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    controller.allocate(MODEL, {64: 3})
    assert until(lambda: has(controller, [0, 0, 3]))
    assert totals(nodes) == [0, 0, 3]


def test_they_outlive_the_controller_and_move_where_a_node_drains(
    nodes: dict[str, FileServer], start: Start, tmp_path: Path
) -> None:
    first = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(first))
    first.allocate(MODEL, {16: 1, 32: 0, 64: 2})
    assert until(lambda: has(first, [1, 0, 2]))
    first.close()
    agents = AgentsInProcess(*nodes.values())  # restarted too: they read their memory
    again = start(agents)
    assert until(lambda: len(agents.calls) > 20)
    assert not any(method == "allocate" for _, method in agents.calls)
    again.drain("b", True)
    assert until(lambda: again.status()["nodes"][1]["drain"] == "drained")
    assert nodes["a"].facts["instances"] == [1, 0, 2]
    assert nodes["b"].facts["instances"] == [0, 0, 1]


def test_fewer_devices_than_were_set_for_are_reported(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    controller.allocate(MODEL, {16: 2, 32: 2, 64: 2})
    assert until(lambda: has(controller, [2, 2, 2]))
    nodes["b"].set(devices=1)
    assert until(lambda: "6 instances are set, and the devices of the nodes hold 4" in waiting(controller))
    controller.allocate(MODEL, None)
    assert until(lambda: has(controller, None) and sum(totals(nodes)) == 4)


def test_what_cannot_be_set_is_named_and_changes_nothing(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    before = plan_of(controller)
    with pytest.raises(NotFound, match="no node serves the partitioned model 'tiní': did you mean 'tiny'"):
        controller.allocate("tiní", {64: 2})
    with pytest.raises(InvalidArgument, match="there is no runtime with max_length 8; accepted: 16, 32, 64"):
        controller.allocate(MODEL, {8: 1, 64: 2})
    with pytest.raises(InvalidArgument, match="of the longest runtime at least 2, one for each entrance"):
        controller.allocate(MODEL, {16: 1, 64: 1})
    with pytest.raises(InvalidArgument, match="9 instances are set, and the devices of the nodes hold 6"):
        controller.allocate(MODEL, {16: 7, 64: 2})
    some_passes(controller)
    assert plan_of(controller) == before


def test_present_instances_are_those_of_nodes_that_do_not_drain(nodes: dict[str, FileServer], start: Start) -> None:
    controller = start(AgentsInProcess(*nodes.values()))
    assert until(lambda: done(controller))
    assert instances_of(MODEL, controller.status()) == {16: 2, 32: 2, 64: 2}
    controller.drain("b", True)
    assert until(
        lambda: instances_of(MODEL, controller.status()) == dict(zip(LENGTHS, totals({"a": nodes["a"]}), strict=True))
    )
    with pytest.raises(NotFound, match="no node serves the partitioned model 'tin': did you mean 'tiny'"):
        instances_of("tin", controller.status())
