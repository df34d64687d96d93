"""Dispatch at one of several entrances, where each entrance is assigned its share of the instances."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.placing import start
from tidal.arlo.policies import ArloBatch, ArloQuery, CompletionRule, CongestionRule, DispatchRule, PartitionedPolicy
from tidal.arlo.policies.assigned import imbalance

RUNTIMES, LATENCIES, SLO_S = (32, 64, 128), (1.0, 2.0, 4.0), 40.0
ROW = [1, 1, 1]
NODES = {"b": ROW, "c": ROW, "d": ROW}


def policy_of(
    share: float = 0.5, assigned: tuple[str, ...] = ("b",), rule: DispatchRule | None = None
) -> PartitionedPolicy:
    """Return the policy of node `a` in a cluster of four equal nodes."""
    policy = PartitionedPolicy(RUNTIMES, LATENCIES, SLO_S, ROW, rule=rule or CompletionRule())
    policy.allocate(ROW, NODES, share, assigned)
    return policy


def nodes_of(policy: PartitionedPolicy, count: int, length: int) -> str:
    """Dispatch queries and return the node of each; `a` is the entrance's own."""
    before = {lane: instance.outstanding for lane, instance in policy._instances.items()}
    found = ""
    for _ in range(count):
        policy.submit(ArloQuery(length, 0.0))
        (lane,) = (lane for lane, its in policy._instances.items() if its.outstanding > before[lane])
        before[lane] += 1
        found += policy.remote_lanes.get(lane, "a")
    return found


def test_assigned_instances_are_used_first_and_others_where_those_are_full() -> None:
    """Another entrance is expected to have 1.5 queries at each of its instances."""
    assert nodes_of(policy_of(), 6, 100) == "ababcd"
    assert nodes_of(policy_of(1.0), 6, 100) == "abcdab"  # an entrance alone knows that they idle


def test_what_this_entrance_sends_to_others_they_send_to_its_instances() -> None:
    """With two of its own and likely one of the other's, an own instance answers after three: another has 2 + 1.5."""
    policy = policy_of()
    nodes_of(policy, 6, 100)
    assert [level.expected_load(0.5) for level in policy._fitting[100]] == [2 + 1, 1 / 0.5 + 1.5]
    assert nodes_of(policy, 2, 100) == "ab"


def test_an_instance_that_is_assigned_again_keeps_its_queries() -> None:
    policy = policy_of()
    nodes_of(policy, 2, 100)
    policy.allocate(ROW, NODES, 0.5, ["c"])
    assert nodes_of(policy, 2, 100) == "ca"
    assert sum(policy.outstanding) == 4
    policy.allocate(ROW, NODES)
    assert nodes_of(policy, 2, 100) == "db"


def test_where_entrances_have_other_instances_loads_are_estimated_from_the_share() -> None:
    """Only this entrance has the shortest runtime: others use it too, so one own query is taken for two."""
    even, uneven = policy_of(), PartitionedPolicy(RUNTIMES, LATENCIES, SLO_S, [2, 1, 1], rule=CompletionRule())
    uneven.allocate([2, 1, 1], {"b": [2, 1, 1], "c": [0, 1, 1], "d": [0, 1, 1]}, 0.5, ["b"])
    assert [len(policy._fitting[100]) for policy in (even, uneven)] == [2, 1]
    assert nodes_of(uneven, 4, 10) == "aabb"
    uneven.submit(ArloQuery(10, 0.0))
    assert uneven.outstanding == [4, 1, 0]


def test_algorithm_1_is_over_all_instances() -> None:
    for share in (1.0, 0.5):
        rows = [policy_of(share, assigned, CongestionRule()) for assigned in ((), ("b",))]
        assert len({nodes_of(policy, 9, 100) for policy in rows}) == 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(2, 6))
def test_equal_entrances_are_balanced(own: list[int], entrances: int) -> None:
    assert imbalance(own, [each * entrances for each in own], 1 / entrances) == pytest.approx(0.0)


def test_the_imbalance_is_the_share_of_instances_that_are_of_another_runtime() -> None:
    assert imbalance([3, 1], [4, 4], 0.5) == 0.25  # one of four
    assert imbalance([4, 0], [4, 4], 0.5) == 0.5
    assert imbalance([0, 0], [0, 0], 0.5) == 0.0


events = st.lists(st.one_of(st.integers(1, 128), st.integers(-9, -1)), max_size=150)


def play(policy: PartitionedPolicy, happens: list[int]) -> list[int]:
    """Submit queries of these lengths, end a running one for each negative number; return the lane of each query."""
    running, lanes = list[ArloBatch](), list[int]()
    for number in happens:
        if number > 0:
            before = {lane: instance.outstanding for lane, instance in policy._instances.items()}
            policy.submit(ArloQuery(number, 0.0))
            lanes += [lane for lane, its in policy._instances.items() if its.outstanding > before[lane]]
            while (batch := policy.next_batch(0.0)) is not None:
                running.append(batch)
        elif running:
            policy.finished(running.pop(number % len(running)))
            while (batch := policy.next_batch(0.0)) is not None:
                running.append(batch)
    return lanes


@given(events, st.sampled_from([(), ("b",), ("c", "d")]))
@settings(max_examples=100, deadline=None)
def test_an_entrance_alone_does_not_depend_on_what_is_assigned(happens: list[int], assigned: tuple[str, ...]) -> None:
    assert play(policy_of(1.0, assigned), happens) == play(policy_of(1.0, ()), happens)


def cheapest(policy: PartitionedPolicy, assigned: str, length: int) -> set[int]:
    """Return the lanes that would answer a query first, at equal shares of two entrances: no queues, no levels."""
    costs = dict[int, float]()
    for runtime in range(3):
        if RUNTIMES[runtime] < length:
            continue
        its = [each for each in policy._instances.values() if each.runtime == runtime]
        own = [each for each in its if each.node in (None, assigned)]
        sent = min(each.outstanding for each in its if each not in own)
        for each in its:
            expected = each.outstanding + (sent if each in own else each.outstanding + 1.5)
            costs[each.lane] = (expected + 1.0) * LATENCIES[runtime]
    return {lane for lane, cost in costs.items() if cost == min(costs.values())}


@given(
    st.lists(st.sampled_from([*[10, 50, 100] * 4, *range(-9, 0), "b", "c", "d"]), min_size=60, max_size=150),
)
@settings(max_examples=200, deadline=None)
def test_the_chosen_instance_is_expected_to_answer_first(happens: list[int | str]) -> None:
    """Whatever ran before, and wherever instances were assigned before."""
    policy, assigned, running = policy_of(), "b", list[ArloBatch]()
    for event in happens:
        if isinstance(event, str):
            assigned = event
            policy.allocate(ROW, NODES, 0.5, [assigned])
        elif event > 0:
            expected = cheapest(policy, assigned, event)
            before = {lane: its.outstanding for lane, its in policy._instances.items()}
            policy.submit(ArloQuery(event, 0.0))
            (lane,) = (lane for lane, its in policy._instances.items() if its.outstanding > before[lane])
            assert lane in expected
        elif running:
            policy.finished(running.pop(event % len(running)))
        if policy.can_start:
            running.append(start(policy))
