"""The partitioned policy over the instances of several nodes: Algorithm 1, preferences, changes, invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.placing import start
from tidal.arlo.policies import (
    ArloBatch,
    ArloQuery,
    CompletionRule,
    CongestionRule,
    DispatchRule,
    PartitionedPolicy,
)
from tidal.errors import InvalidArgument

RUNTIMES = (32, 64, 128)
LOCAL, B, C = [1, 1, 1], [1, 0, 2], [0, 1, 1]


def policy_over(*, depth: int = 1, **remote: list[int]) -> PartitionedPolicy:
    """Return a policy with `LOCAL` instances and those of other nodes; capacities are 40, 20 and 10."""
    policy = PartitionedPolicy(RUNTIMES, [0.01, 0.02, 0.04], 0.4, LOCAL, depth=depth)
    policy.allocate(LOCAL, remote)
    return policy


def node_of(policy: PartitionedPolicy, batch: ArloBatch) -> str | None:
    return policy.remote_lanes.get(batch.lane)


class TestDispatch:
    def test_a_local_instance_is_preferred_to_equally_loaded_ones(self) -> None:
        policy = policy_over(b=[3, 0, 0])
        policy.submit(ArloQuery(10, 0.0))
        assert node_of(policy, start(policy)) is None

    def test_queries_spread_over_the_instances_of_all_nodes(self) -> None:
        policy = policy_over(b=B, c=C)
        for _ in range(4):
            policy.submit(ArloQuery(100, 0.0))
        assert [node_of(policy, start(policy)) for _ in range(4)] == [None, "b", "b", "c"]
        assert policy.next_batch(0.0) is None

    def test_of_equally_loaded_instances_those_of_the_first_nodes_are_preferred(self) -> None:
        policy = policy_over(b=[2, 0, 0], c=[2, 0, 0])
        for order in (["b", "c"], ["c", "b"]):
            policy.allocate(LOCAL, {name: [2, 0, 0] for name in order})
            for _ in range(5):
                policy.submit(ArloQuery(10, 0.0))
            batches = [start(policy) for _ in range(5)]
            assert [node_of(policy, batch) for batch in batches] == [None, *(node for node in order for _ in range(2))]
            for batch in batches:
                policy.finished(batch)

    def test_a_runtime_that_only_another_node_has_is_used(self) -> None:
        policy = PartitionedPolicy(RUNTIMES, [0.01, 0.02, 0.04], 0.4, [0, 0, 1])
        policy.allocate([0, 0, 1], {"b": [1, 0, 0]})
        policy.submit(ArloQuery(10, 0.0))
        batch = start(policy)
        assert (batch.runtime, node_of(policy, batch)) == (0, "b")

    def test_a_query_goes_to_another_node_before_it_is_demoted(self) -> None:
        """Congestion is that of the least loaded instance of the runtime, on whichever node."""
        alone, joined = policy_over(), policy_over(b=[1, 0, 0])
        for policy in (alone, joined):
            for _ in range(36):
                policy.submit(ArloQuery(10, 0.0))
        assert alone.outstanding[0] == 34  # 0.85 of 40
        assert joined.outstanding == [36, 0, 0]

    @pytest.mark.parametrize(("share", "demoted_after"), [(1.0, 68), (0.5, 34), (0.25, 18)])
    def test_congestion_includes_the_share_of_other_entrances(self, share: float, demoted_after: int) -> None:
        """Two instances of capacity 40 and λ 0.85: 34 queries each, of which others have sent their share."""
        policy = policy_over(b=[1, 0, 0])
        policy.allocate(LOCAL, {"b": [1, 0, 0]}, share)
        while not policy.outstanding[1]:
            policy.submit(ArloQuery(10, 0.0))
        assert policy.outstanding[0] == demoted_after

    def test_a_node_alone_has_all_queries_of_its_instances(self) -> None:
        policy = policy_over()
        policy.allocate(LOCAL, {}, 0.25)
        for _ in range(34):
            policy.submit(ArloQuery(10, 0.0))
        assert policy.outstanding == [34, 0, 0]

    def test_another_node_gets_the_next_query_while_it_runs_one(self) -> None:
        policy = policy_over(depth=2, b=[1, 0, 0])
        for _ in range(8):
            policy.submit(ArloQuery(10, 0.0))
        batches = [start(policy) for _ in range(4)]
        assert [node_of(policy, batch) for batch in batches].count("b") == 2
        assert policy.next_batch(0.0) is None
        policy.finished(next(batch for batch in batches if node_of(policy, batch) == "b"))
        assert node_of(policy, start(policy)) == "b"
        assert policy.next_batch(0.0) is None

    def test_a_node_that_does_not_run_a_query_gets_none_until_both_have_ended(self) -> None:
        policy = PartitionedPolicy(RUNTIMES, [0.01, 0.02, 0.04], 0.4, [0, 0, 1], depth=2)
        policy.allocate([0, 0, 1], {"b": [1, 0, 0]})
        for now in range(3):
            policy.submit(ArloQuery(10, float(now)))
        first, second = start(policy), start(policy)
        policy.requeue(first)
        assert policy.outstanding == [1, 0, 2]  # of the longest runtime now: the first query and the third one
        local = start(policy)
        assert (node_of(policy, local), local.queries) == (None, first.queries)
        assert node_of(policy, start(policy)) is None  # the third query
        policy.requeue(second)
        policy.finished(first)
        policy.submit(ArloQuery(10, 3.0))
        assert policy.outstanding == [0, 0, 4]
        policy.finished(second)
        policy.submit(ArloQuery(10, 4.0))
        assert policy.outstanding == [1, 0, 4]
        assert node_of(policy, start(policy)) == "b"

    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(st.integers(1, 128), max_size=120),
        st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=3),
    )
    def test_it_equals_algorithm_1_over_all_instances(self, lengths: list[int], remote: list[list[int]]) -> None:
        nodes = {f"n{i}": counts for i, counts in enumerate(remote)}
        policy = policy_over(**nodes)
        # The reference: a list of loads per runtime, local ones first, and the paper's loop.
        loads = [[0] * sum(counts[runtime] for counts in (LOCAL, *remote)) for runtime in range(3)]
        for length in lengths:
            fitting = [r for r in range(3) if RUNTIMES[r] >= length and loads[r]]
            threshold, chosen = 0.85, fitting[0]
            for runtime in fitting:
                if min(loads[runtime]) / (40, 20, 10)[runtime] < threshold:
                    chosen = runtime
                    break
                threshold *= 0.9
            loads[chosen][loads[chosen].index(min(loads[chosen]))] += 1
            policy.submit(ArloQuery(length, 0.0))
        assert policy.outstanding == [sum(each) for each in loads]
        own = [[i.load for i in policy._instances.values() if i.runtime == runtime] for runtime in range(3)]
        assert [sorted(each) for each in own] == [sorted(each) for each in loads]


class TestChanges:
    def test_counts_are_by_node(self) -> None:
        policy = policy_over(b=B, c=C)
        assert (policy.instances, policy.remote) == (LOCAL, {"b": B, "c": C})
        assert policy.max_concurrency == 8
        assert policy_over(depth=2, b=B, c=C).max_concurrency == 16

    def test_queries_of_a_node_that_is_gone_are_dispatched_again(self) -> None:
        policy = policy_over(b=[2, 0, 0])
        queries = [ArloQuery(10, float(t)) for t in range(9)]
        for query in queries:
            policy.submit(query)
        batches = [start(policy) for _ in range(3)]
        assert sum(node_of(policy, batch) == "b" for batch in batches) == 2
        policy.allocate(LOCAL)
        assert policy.remote == {"b": [2, 0, 0]}  # they leave when they have answered
        assert len(policy) == 6
        for batch in batches:
            policy.finished(batch)
        assert policy.remote == {}
        ran = []
        while (batch := policy.next_batch(0.0)) is not None:
            ran += batch.queries
            policy.finished(batch)
        assert ran == queries[3:]

    def test_a_query_that_a_node_did_not_run_goes_elsewhere(self) -> None:
        policy = PartitionedPolicy(RUNTIMES, [0.01, 0.02, 0.04], 0.4, LOCAL)
        policy.allocate(LOCAL, {"b": [0, 0, 1]})
        first, second = ArloQuery(100, 0.0), ArloQuery(100, 1.0)
        for query in (first, second):
            policy.submit(query)
        local, remote = start(policy), start(policy)
        assert node_of(policy, remote) == "b"
        policy.requeue(remote)
        assert policy.next_batch(0.0) is None
        policy.finished(local)
        assert node_of(policy, again := start(policy)) is None
        assert again.queries == [second]

    def test_a_node_that_returns_keeps_its_busy_instances(self) -> None:
        policy = policy_over(b=[1, 0, 0])
        for _ in range(2):
            policy.submit(ArloQuery(10, 0.0))
        batches = [start(policy) for _ in range(2)]
        policy.allocate(LOCAL)
        policy.allocate(LOCAL, {"b": [1, 0, 0]})
        assert policy.remote == {"b": [1, 0, 0]}
        for batch in batches:
            policy.finished(batch)
        assert policy.remote == {"b": [1, 0, 0]}

    def test_an_instance_that_leaves_one_node_is_not_kept_for_another(self) -> None:
        policy = policy_over(b=[1, 0, 0])
        for _ in range(2):
            policy.submit(ArloQuery(10, 0.0))
        assert [node_of(policy, start(policy)) for _ in range(2)] == [None, "b"]
        policy.allocate(LOCAL)
        policy.allocate(LOCAL, {"c": [1, 0, 0]})
        assert policy.remote == {"b": [1, 0, 0], "c": [1, 0, 0]}

    @pytest.mark.parametrize("counts", [[1, 1], [1, 1, -1]])
    def test_counts_that_do_not_match_are_refused(self, counts: list[int]) -> None:
        policy = policy_over(b=B)
        with pytest.raises(InvalidArgument, match=r"of node 'c' does not match the runtimes; expected 3 counts$"):
            policy.allocate(LOCAL, {"c": counts})
        assert policy.remote == {"b": B}

    def test_another_node_does_not_replace_the_longest_local_runtime(self) -> None:
        """A front has to answer every query when it is alone (Eq. 7)."""
        policy = policy_over()
        with pytest.raises(InvalidArgument, match="at least 1 for the longest"):
            policy.allocate([1, 1, 0], {"b": [0, 0, 4]})

    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("submit"), st.integers(1, 128)),
                st.tuples(st.just("next"), st.just(0)),
                st.tuples(st.just("finish"), st.integers(0, 99)),
                st.tuples(st.just("requeue"), st.integers(0, 99)),
                st.tuples(st.just("nodes"), st.integers(0, 728)),
            ),
            max_size=80,
        ),
        st.integers(1, 2),
        st.sampled_from([CompletionRule(), CongestionRule()]),
        st.sampled_from([1.0, 0.5, 0.25]),
    )
    def test_every_query_leaves_once_while_nodes_come_and_go(
        self, events: list[tuple[str, int]], depth: int, rule: DispatchRule, share: float
    ) -> None:
        policy = PartitionedPolicy(RUNTIMES, [0.01, 0.02, 0.04], 0.4, LOCAL, rule=rule, depth=depth)
        policy.allocate(LOCAL, {"b": B}, share)
        submitted, left = list[ArloQuery](), list[ArloQuery]()
        running, held = list[ArloBatch](), list[ArloBatch]()
        remote: dict[str, list[int]] = {"b": B}
        for now, (kind, number) in enumerate(events):
            if kind == "submit":
                submitted.append(ArloQuery(number, float(now)))
                policy.submit(submitted[-1])
            elif kind == "next" and (batch := policy.next_batch(0.0)) is not None:
                assert sum(other.lane == batch.lane for other in running) < depth
                assert not any(other.lane == batch.lane for other in held)
                running.append(batch)
                left += batch.queries
            elif kind == "finish" and running + held:
                batch = (running + held)[number % len(running + held)]
                (running if batch in running else held).remove(batch)
                policy.finished(batch)
            elif kind == "requeue" and running:
                held.append(running.pop(number % len(running)))
                policy.requeue(held[-1])
                left.remove(held[-1].queries[0])
            elif kind == "nodes":
                digits = [number // 3**i % 3 for i in range(6)]
                remote = {name: counts for name, counts in (("b", digits[:3]), ("c", digits[3:])) if any(counts)}
                # What is assigned changes too: instances move between the levels.
                policy.allocate(LOCAL, remote, share, [name for name in remote if number % 2])
            assert len(policy) == len(submitted) - len(left)
            assert sum(policy.outstanding) == len(policy) + len(running)
            for name, counts in remote.items():
                assert all(have >= want for have, want in zip(policy.remote[name], counts, strict=True))
        while len(policy) or running or held:
            for batch in (*running, *held):
                policy.finished(batch)
            running, held = [], []
            while (batch := policy.next_batch(0.0)) is not None:
                running.append(batch)
                left += batch.queries
        assert (policy.instances, policy.remote) == (LOCAL, remote)
        assert sorted(map(id, left)) == sorted(map(id, submitted))
