"""Placement on several nodes, against all placements of small cases."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.scheduling.equations import divisions
from tidal.arlo.scheduling import (
    AllocationProblem,
    InstanceLoad,
    NodeCounts,
    RuntimeProfile,
    place,
    replacement_batches,
    replacement_plan,
    solve,
)
from tidal.errors import InvalidArgument


def columns(wanted: Sequence[int], nodes: int) -> Iterator[NodeCounts]:
    """Yield every placement of the wanted instances, whatever the nodes can hold."""
    of_runtime = [list(divisions(count, [0] * nodes)) for count in wanted]
    for chosen in itertools.product(*of_runtime):
        yield tuple(zip(*chosen, strict=True))


def moves(present: Sequence[InstanceLoad], counts: NodeCounts) -> tuple[int, float]:
    """Return the instances that start and end, and the least load of those that end."""
    ended, load, started = 0, 0.0, 0
    for node, row in enumerate(counts):
        for runtime, count in enumerate(row):
            here = sorted(each.load for each in present if (each.node, each.runtime) == (node, runtime))
            ended += max(0, len(here) - count)
            load += sum(here[: max(0, len(here) - count)])
            started += max(0, count - len(here))
    return ended + started, load


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[int], list[InstanceLoad]]:
    """Wanted instances, devices of each node, and present instances, which may be more than a node's devices."""
    devices = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    runtimes = draw(st.integers(1, 3))
    choices = draw(st.lists(st.integers(0, runtimes), min_size=sum(devices), max_size=sum(devices)))
    where = st.tuples(st.integers(0, runtimes - 1), st.integers(0, len(devices) - 1), st.integers(0, 4))
    present = [
        InstanceLoad(lane, runtime, load / 4, node)
        for lane, (runtime, node, load) in enumerate(draw(st.lists(where, max_size=7)))
    ]
    return [choices.count(runtime) for runtime in range(runtimes)], devices, present


@settings(max_examples=400, deadline=None)
@given(cases())
def test_the_fewest_and_least_loaded_moves(case: tuple[list[int], list[int], list[InstanceLoad]]) -> None:
    wanted, devices, present = case
    placed = place(wanted, devices, present)
    assert [sum(row) for row in zip(*placed, strict=True)] == wanted
    assert all(sum(row) <= can for row, can in zip(placed, devices, strict=True))
    fitting = (
        counts
        for counts in columns(wanted, len(devices))
        if all(sum(row) <= can for row, can in zip(counts, devices, strict=True))
    )
    assert moves(present, placed) == min(moves(present, counts) for counts in fitting)
    assert place(wanted, devices, present[::-1]) == placed


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_placement_that_fits_stays(case: tuple[list[int], list[int], list[InstanceLoad]]) -> None:
    wanted, devices, present = case
    placed = place(wanted, devices, present)
    kept = [
        InstanceLoad(0, runtime, 1.0, node)
        for node, row in enumerate(placed)
        for runtime, count in enumerate(row)
        for _ in range(count)
    ]
    assert place(wanted, devices, kept) == placed


@given(st.lists(st.integers(0, 40), min_size=2, max_size=2), st.integers(2, 12))
def test_one_node_has_the_counts_of_the_solution(demand: list[int], devices: int) -> None:
    runtimes = tuple(RuntimeProfile.from_service(seconds, 0.4) for seconds in (0.01, 0.02))
    instances = solve(AllocationProblem(devices, runtimes, tuple(map(float, demand)))).instances
    assert place(instances, [devices], [InstanceLoad(0, 0, 3.0), InstanceLoad(1, 1, 0.0)]) == (instances,)


def test_a_node_with_more_instances_than_devices_gives_up_those_of_surplus_runtimes() -> None:
    """Eight runtimes in eight processes on two devices."""
    present = [InstanceLoad(runtime, runtime, 1.0) for runtime in range(8)]
    assert place([0] * 7 + [2], [2], present) == ((0, 0, 0, 0, 0, 0, 0, 2),)
    assert place([1, 0, 0, 0, 0, 0, 0, 1], [2], present) == ((1, 0, 0, 0, 0, 0, 0, 1),)


def test_new_instances_spread_over_the_nodes() -> None:
    assert place([2, 4], [2, 2, 2], []) == ((0, 2), (1, 1), (1, 1))


def test_another_instance_is_kept_where_the_node_of_the_most_loaded_one_is_full() -> None:
    """Both nodes have one device; the busiest instances of both runtimes are on the first."""
    present = [InstanceLoad(0, 0, 9.0, 0), InstanceLoad(1, 1, 8.0, 0), InstanceLoad(2, 0, 1.0, 1)]
    assert place([1, 1], [1, 1], present) == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("wanted", "devices", "present", "sentence"),
    [
        ([1, 2], [1, 1], [], "3 instances need as many devices, got 2"),
        ([-1, 2], [1], [], "counts must not be negative"),
        ([1], [-1, 3], [], "counts must not be negative"),
        ([1], [1], [InstanceLoad(0, 0, 0.0, 1)], "an instance has node 1 and runtime 0; there are 1 nodes"),
        ([1], [1], [InstanceLoad(0, 1, 0.0)], "an instance has node 0 and runtime 1"),
        ([1], [1], [InstanceLoad(0, 0, float("nan"))], "a load must be between 0 and 2"),
    ],
)
def test_bad_inputs_are_named(
    wanted: list[int], devices: list[int], present: list[InstanceLoad], sentence: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        place(wanted, devices, present)
    assert sentence in str(error.value)


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 6), min_size=3, max_size=3)] * 2), min_size=1, max_size=4))
def test_plans_over_nodes_replace_on_each_node_what_has_to_be(pairs: list[tuple[list[int], list[int]]]) -> None:
    current, wanted = [have for have, _ in pairs], [want for _, want in pairs]
    plan = replacement_plan(current, wanted)
    counts = Counter({(node, runtime): count for node, row in enumerate(current) for runtime, count in enumerate(row)})
    changes = Counter(change.node for change in plan)
    for node, (have, want) in enumerate(pairs):
        gaps = [b - a for a, b in zip(have, want, strict=True)]
        assert changes[node] == max(sum(gap for gap in gaps if gap > 0), -sum(gap for gap in gaps if gap < 0))
    for batch in replacement_batches(plan, 2):
        for change in batch:
            if change.source is not None:
                counts[change.node, change.source] -= 1
            if change.target is not None:
                counts[change.node, change.target] += 1
    assert [[counts[node, runtime] for runtime in range(3)] for node in range(len(pairs))] == wanted


def test_nodes_take_turns_in_a_plan() -> None:
    plan = replacement_plan([[4, 0], [4, 0]], [[2, 2], [2, 2]])
    assert [change.node for change in plan] == [0, 1, 0, 1]
