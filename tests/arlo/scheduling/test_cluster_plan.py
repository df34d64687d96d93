"""Decisions about a cluster, against all placements of small cases."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.scheduling.equations import cost, divisions, least_instances
from tests.arlo.scheduling.test_placement import columns, moves
from tidal.arlo.scheduling import (
    AllocationProblem,
    ClusterNode,
    InstanceLoad,
    RuntimeProfile,
    plan_cluster,
    solve,
)
from tidal.errors import InvalidArgument

SLO_S = 1.0
# Capacities of 100, 50, 25 and 12 queries per SLO period.
PROFILES = [RuntimeProfile.from_service(service_s, SLO_S) for service_s in (0.01, 0.02, 0.04, 0.08)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[ClusterNode], list[float]]:
    """Nodes, at least one of which does not drain, and the demand by runtime, which may be 0."""
    runtimes = draw(st.integers(1, 3))
    counts = st.tuples(*[st.integers(0, 2)] * runtimes)
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        instances = draw(counts)
        nodes.append(
            ClusterNode(
                name=f"n{number}",
                devices=draw(st.integers(1, 3)),
                instances=instances,
                busy_s=tuple(draw(st.integers(0, 4)) / 4 * count for count in instances),
                entrance=draw(st.booleans()),
                draining=number > 0 and draw(st.booleans()),
            )
        )
    demand = draw(st.lists(st.integers(0, 120).map(float), min_size=runtimes, max_size=runtimes))
    return nodes, draw(st.sampled_from([demand, [0.0] * runtimes]))


def present(nodes: list[ClusterNode]) -> list[InstanceLoad]:
    return [
        InstanceLoad(0, runtime, node.busy_s[runtime] / count, at)
        for at, node in enumerate(nodes)
        for runtime, count in enumerate(node.instances)
        for _ in range(count)
    ]


def valid(nodes: list[ClusterNode], counts: tuple[tuple[int, ...], ...]) -> bool:
    """Whether each node holds its instances, entrances have the longest runtime, and draining nodes nothing else."""
    for node, row in zip(nodes, counts, strict=True):
        limit = int(node.entrance) if node.draining else node.devices
        if sum(row) > limit or row[-1] < node.entrance:
            return False
    return True


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_plans_fit_the_devices_with_the_fewest_and_least_loaded_moves(
    case: tuple[list[ClusterNode], list[float]],
) -> None:
    nodes, demand = case
    plan = plan_cluster(nodes, PROFILES[-len(demand) :], demand)
    assert plan.before == tuple(node.instances for node in nodes)
    assert valid(nodes, plan.after)
    active = [row for node, row in zip(nodes, plan.after, strict=True) if not node.draining]
    assert sum(map(sum, active)) == sum(node.devices for node in nodes if not node.draining)
    assert sum(row[-1] for row in active) >= 1
    totals = [sum(column) for column in zip(*plan.after, strict=True)]
    fitting = (counts for counts in columns(totals, len(nodes)) if valid(nodes, counts))
    loads = present(nodes)
    ended, load = moves(loads, plan.after)
    assert (ended, pytest.approx(load)) == min(moves(loads, counts) for counts in fitting)
    assert plan.moves == ended


@settings(max_examples=200, deadline=None)
@given(clusters(), st.data())
def test_fewer_instances_than_devices(case: tuple[list[ClusterNode], list[float]], data: st.DataObject) -> None:
    nodes, demand = case
    active = [node for node in nodes if not node.draining]
    least = max(1, sum(node.entrance for node in active))
    wanted = data.draw(st.integers(least, sum(node.devices for node in active)))
    plan = plan_cluster(nodes, PROFILES[-len(demand) :], demand, instances=wanted)
    assert valid(nodes, plan.after)
    rows = [row for node, row in zip(nodes, plan.after, strict=True) if not node.draining]
    assert sum(map(sum, rows)) == wanted
    assert sum(row[-1] for row in rows) >= least


@settings(max_examples=200, deadline=None)
@given(clusters(), st.data())
def test_instances_that_are_set_are_placed_with_the_fewest_moves(
    case: tuple[list[ClusterNode], list[float]], data: st.DataObject
) -> None:
    nodes, demand = case
    active = [node for node in nodes if not node.draining]
    least, devices = max(1, sum(node.entrance for node in active)), sum(node.devices for node in active)
    longest = data.draw(st.integers(least, devices))
    counts = [longest]
    for _ in demand[1:]:
        counts.insert(0, data.draw(st.integers(0, devices - sum(counts))))
    plan = plan_cluster(nodes, PROFILES[-len(demand) :], demand, counts=counts)
    assert valid(nodes, plan.after)
    rows = [row for node, row in zip(nodes, plan.after, strict=True) if not node.draining]
    assert [sum(column) for column in zip(*rows, strict=True)] == counts
    assert plan.reason.startswith("an operator has set the instances")
    totals = [sum(column) for column in zip(*plan.after, strict=True)]
    placements = (each for each in columns(totals, len(nodes)) if valid(nodes, each))
    ended, load = moves(present(nodes), plan.after)
    assert (ended, pytest.approx(load)) == min(moves(present(nodes), each) for each in placements)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((2, 0), "instances are 2, 0; accepted are numbers from 0, of the longest runtime at least 1"),
        ((-1, 2), "instances are -1, 2; accepted are numbers from 0"),
        ((3, 2), "5 instances are set, and the devices of the nodes hold 4"),
    ],
)
def test_instances_that_cannot_be_placed_are_refused(counts: tuple[int, int], expected: str) -> None:
    node = ClusterNode("a", 4, (2, 2), (0.0, 0.0))
    with pytest.raises(InvalidArgument, match=expected):
        plan_cluster([node], PROFILES[-2:], (1.0, 1.0), counts=counts)


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_a_plan_that_was_carried_out_stays(case: tuple[list[ClusterNode], list[float]]) -> None:
    nodes, demand = case
    profiles = PROFILES[-len(demand) :]
    after = plan_cluster(nodes, profiles, demand).after
    carried_out = [
        ClusterNode(node.name, node.devices, row, (0.0,) * len(row), node.entrance, node.draining)
        for node, row in zip(nodes, after, strict=True)
    ]
    assert plan_cluster(carried_out, profiles, demand).after == after


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_stages_end_at_the_plan_and_never_exceed_a_node(case: tuple[list[ClusterNode], list[float]]) -> None:
    nodes, demand = case
    plan = plan_cluster(nodes, PROFILES[-len(demand) :], demand)
    passed = [plan.before, *plan.stages()]
    assert passed[-1] == plan.after
    for stage, following in itertools.pairwise(passed):
        for node, row, later, first in zip(nodes, stage, following, plan.before, strict=True):
            assert sum(later) <= max(node.devices, sum(first))
            assert not node.draining or later == row or following == plan.after
    for at, node in enumerate(nodes):
        # An entrance with an instance of the longest runtime never loses the last one.
        if node.entrance and plan.before[at][-1]:
            assert all(stage[at][-1] >= 1 for stage in passed)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 200).map(float), min_size=3, max_size=3), st.integers(3, 7), st.integers(1, 3))
def test_the_counts_are_the_best_with_enough_of_the_longest(demand: list[float], devices: int, longest: int) -> None:
    problem = AllocationProblem(devices, tuple(PROFILES[1:]), tuple(demand), longest)
    least = least_instances(problem)
    least[-1] = max(least[-1], longest)
    found = solve(problem)
    assert found.instances[-1] >= longest
    if sum(least) <= devices:
        best = min(cost(problem, counts) for counts in divisions(devices, least))
        assert cost(problem, found.instances) == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 150).map(float), min_size=3, max_size=3).filter(any),
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=4),
)
def test_the_counts_are_the_best_with_one_of_the_longest_per_entrance(
    demand: list[float], given_nodes: list[tuple[int, bool]]
) -> None:
    """Against all divisions of the devices; with fewer entrances they are as good as before or better."""
    costs = []
    profiles, devices = PROFILES[:3], sum(count for count, _ in given_nodes)
    for all_entrances in (True, False):
        nodes = [
            ClusterNode(f"n{at}", count, (0, 0, 0), (0.0,) * 3, entrance=all_entrances or entrance)
            for at, (count, entrance) in enumerate(given_nodes)
        ]
        longest = max(1, sum(node.entrance for node in nodes))
        plan = plan_cluster(nodes, profiles, demand, min_gain=0.0)
        found = tuple(sum(column) for column in zip(*plan.after, strict=True))
        assert all(row[-1] >= node.entrance for node, row in zip(nodes, plan.after, strict=True))
        problem = AllocationProblem(devices, tuple(profiles), tuple(demand), longest)
        least = least_instances(problem)
        least[-1] = max(least[-1], longest)
        if sum(least) > devices:
            return  # the demand is scaled down: no cost to compare
        assert cost(problem, found) == pytest.approx(min(cost(problem, counts) for counts in divisions(devices, least)))
        costs.append(cost(problem, found))
    assert costs[1] <= costs[0] * (1 + 1e-9)


def node(
    name: str, devices: int, *instances: int, busy_s: tuple[float, ...] = (), draining: bool = False
) -> ClusterNode:
    return ClusterNode(name, devices, instances, busy_s or (0.0,) * len(instances), draining=draining)


def test_eight_runtimes_on_two_devices_are_two_instances() -> None:
    profiles = [RuntimeProfile.from_service(0.01 * n, SLO_S) for n in range(1, 9)]
    nodes = [node("a", 1, *[1] * 8), node("b", 1, *[1] * 8)]
    for demand in ([0.0] * 8, [5.0] * 8):
        assert plan_cluster(nodes, profiles, demand).after == ((*[0] * 7, 1), (*[0] * 7, 1))


def test_lengths_of_all_entrances_count_and_each_runtime_may_be_on_one_node() -> None:
    nodes = [node("a", 2, 0, 0, 1), node("b", 2, 0, 0, 1)]
    plan = plan_cluster(nodes, PROFILES[:3], [60.0, 20.0, 1.0])
    assert [sum(column) for column in zip(*plan.after, strict=True)] == [1, 1, 2]
    assert "hold 4 instances instead of 2" in plan.reason
    assert all(row[-1] == 1 for row in plan.after)


def test_a_draining_node_keeps_its_entrance_and_moves_the_rest_last() -> None:
    nodes = [node("a", 3, 1, 1), node("b", 3, 2, 1, draining=True)]
    plan = plan_cluster(nodes, PROFILES[:2], [0.0, 0.0])
    assert plan.after == ((2, 1), (0, 1))
    assert [stage[1] for stage in plan.stages()] == [(2, 1), (0, 1)]


def test_the_least_loaded_instance_of_a_full_node_ends() -> None:
    nodes = [node("a", 2, 1, 1, 1, busy_s=(3.0, 1.0, 5.0))]
    assert plan_cluster(nodes, PROFILES[:3], [0.0] * 3).after == ((1, 0, 1),)


def test_one_instance_more_is_of_the_longest_runtime_and_the_least_loaded_one_ends() -> None:
    nodes = [node("a", 3, 1, 1, busy_s=(1.0, 2.0)), node("b", 3, 1, 1, busy_s=(0.5, 2.0))]
    more, fewer = (plan_cluster(nodes, PROFILES[:2], [0.0, 0.0], instances=count) for count in (5, 3))
    assert (more.after, fewer.after) == (((1, 2), (1, 1)), ((1, 1), (0, 1)))
    assert more.reason == "there were no queries, and 5 instances are wanted instead of 4"


@pytest.mark.parametrize("count", [1, 7])
def test_a_number_of_instances_that_does_not_fit_is_named(count: int) -> None:
    nodes = [node("a", 3, 1, 1), node("b", 3, 1, 1)]
    with pytest.raises(InvalidArgument, match=f"instances must be between 2 and 6, got {count}"):
        plan_cluster(nodes, PROFILES[:2], [0.0, 0.0], instances=count)


def test_a_small_gain_changes_nothing() -> None:
    nodes = [node("a", 2, 0, 2), node("b", 2, 0, 2)]
    plan = plan_cluster(nodes, PROFILES[:2], [1.0, 1.0], min_gain=0.9)
    assert plan.moves == 0
    assert "below the minimum gain of 90 %" in plan.reason


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("a", 1, 0, 1, draining=True)], "no node has devices that do not drain"),
        ([node("a", 0, 0, 1)], "devices of node 'a' must be at least 1, got 0"),
        ([node("a", 1, 0, 0, 1)], "instances of node 'a' must be 2 numbers of at least 0"),
        ([node("a", 1, -1, 1)], "instances of node 'a' must be 2 numbers of at least 0"),
    ],
)
def test_bad_inputs_are_named(nodes: list[ClusterNode], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        plan_cluster(nodes, PROFILES[:2], [1.0, 1.0])
