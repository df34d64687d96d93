"""Dispatch by loads that include the queries of other entrances, as of their last exchange."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.placing import start
from tidal.arlo.policies import ArloQuery, PartitionedPolicy
from tidal.simulator.arlo.nodes.dispatch import InformedPolicy

RUNTIMES, LATENCIES, SLO_S = (32, 64, 128), (0.01, 0.02, 0.04), 0.4


def policy_over(local: list[int], **remote: list[int]) -> InformedPolicy:
    policy = InformedPolicy(RUNTIMES, LATENCIES, SLO_S, local)
    policy.allocate(local, remote)
    return policy


def nodes_of(policy: InformedPolicy, count: int, length: int = 10) -> list[str | None]:
    """Dispatch queries and return the node of each."""
    found = []
    for _ in range(count):
        policy.submit(ArloQuery(length, 0.0))
        found.append(policy.remote_lanes.get(start(policy).lane))
    return found


def test_queries_of_others_count_as_load() -> None:
    policy = policy_over([1, 0, 1], b=[1, 0, 0], c=[1, 0, 0])
    policy.inform({None: [2, 0, 0], "b": [1, 0, 0]})
    assert nodes_of(policy, 1) == ["c"]
    policy.inform({})
    assert nodes_of(policy, 1) == [None]


def test_queries_of_others_are_shared_by_the_instances_of_a_node() -> None:
    policy = policy_over([0, 0, 1], b=[2, 0, 0], c=[1, 0, 0])
    policy.inform({"b": [3, 0, 0], "c": [2, 0, 0]})
    assert nodes_of(policy, 1) == ["b"]  # one of its instances has one query, the other two


def test_others_can_congest_a_runtime() -> None:
    policy = policy_over([1, 0, 1])
    policy.inform({None: [34, 0, 0]})  # 0.85 of 40
    policy.submit(ArloQuery(10, 0.0))
    assert policy.outstanding == [0, 0, 1]
    assert policy.own_outstanding() == {None: [0, 0, 1]}


def test_a_blocked_instance_keeps_the_load_of_others() -> None:
    policy = policy_over([1, 0, 1], b=[1, 0, 0])
    policy.inform({None: [3, 0, 0]})
    policy.submit(ArloQuery(10, 0.0))
    batch = start(policy)
    assert policy.remote_lanes[batch.lane] == "b"
    policy.requeue(batch)
    again = start(policy)
    assert again.lane not in policy.remote_lanes
    policy.inform({"b": [5, 0, 0]})
    policy.finished(batch)
    policy.finished(again)
    for _ in range(5):
        policy.submit(ArloQuery(10, 0.0))
    assert policy.own_outstanding() == {None: [5, 0, 0], "b": [0, 0, 0]}
    policy.inform({})
    policy.submit(ArloQuery(10, 0.0))
    assert policy.own_outstanding()["b"] == [1, 0, 0]


counts = st.lists(st.integers(0, 3), min_size=3, max_size=3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 128), max_size=60),
    st.lists(counts, max_size=2),
    st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=3, max_size=3)), max_size=60),
)
def test_without_queries_of_others_it_is_the_served_policy(
    lengths: list[int], remote: list[list[int]], informed: list[list[int] | None]
) -> None:
    """Whatever was known before: once the others have nothing, loads and choices are those of `PartitionedPolicy`."""
    nodes = {f"n{at}": row for at, row in enumerate(remote)}
    policy, served = policy_over([1, 1, 1], **nodes), PartitionedPolicy(RUNTIMES, LATENCIES, SLO_S, [1, 1, 1])
    served.allocate([1, 1, 1], nodes)
    for row in informed:
        policy.inform({} if row is None else dict.fromkeys([None, *nodes], row))
    policy.inform({})
    for length in lengths:
        policy.submit(ArloQuery(length, 0.0))
        served.submit(ArloQuery(length, 0.0))
    assert policy.outstanding == served.outstanding
    assert policy.own_outstanding() == {
        node: [
            sum(i.outstanding for i in served._instances.values() if (i.node, i.runtime) == (node, r)) for r in range(3)
        ]
        for node in {i.node for i in served._instances.values()}
    }


def test_instances_that_end_take_their_load_with_them() -> None:
    policy = policy_over([1, 0, 1], b=[1, 0, 0])
    policy.inform({"b": [4, 0, 0]})
    policy.allocate([1, 0, 1], {})
    policy.allocate([1, 0, 1], {"b": [1, 0, 0]})
    policy.inform({None: [1, 0, 0]})
    assert nodes_of(policy, 1) == ["b"]


def test_wrong_nodes_are_ignored() -> None:
    policy = policy_over([1, 0, 1])
    policy.inform({"gone": [9, 9, 9]})
    assert policy.own_outstanding() == {None: [0, 0, 0]}
    assert nodes_of(policy, 1) == [None]
