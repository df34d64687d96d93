"""Simulated nodes compared with queueing theory and with the simulation of one cluster; lost and late nodes; plans."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.arlo.policies import CompletionRule
from tidal.arlo.scheduling import AllocationProblem, RuntimeProfile, demand_by_runtime, solve
from tidal.errors import InvalidArgument
from tidal.simulator.arlo import (
    LengthHistory,
    ServiceTimes,
    SyntheticRequests,
    SystemName,
    length_history,
    make_system,
    simulate,
)
from tidal.simulator.arlo.nodes import (
    NodeOutage,
    NodesResult,
    SimulatedNodes,
    random_outages,
    simulate_nodes,
)
from tidal.simulator.traces import RecordedRequests

TIMES = ServiceTimes((64, 128, 256), (0.01, 0.02, 0.04))
SLO_S = 0.4


def requests(rate: float, seconds: int = 4, seed: int = 0) -> SyntheticRequests:
    return SyntheticRequests([rate] * seconds, (20, 100, 200), (4, 2, 1), longest=256, seed=seed)


def shifting(rate: float, seconds: int) -> RecordedRequests:
    """Short queries, then long ones."""
    times = np.concatenate([second.times for second in requests(rate, seconds)])
    return RecordedRequests(times, np.where(times < seconds / 2, 20, 200), 256)


def run(source: SyntheticRequests | RecordedRequests, nodes: SimulatedNodes, **options: float) -> NodesResult:
    return simulate_nodes(source, TIMES, nodes, slo_s=SLO_S, **options)  # type: ignore[arg-type]


def test_one_device_is_a_queue_with_constant_service_times() -> None:
    """M/D/1: the mean over ten long runs within four of its standard errors."""
    times, rate, means = ServiceTimes((64,), (0.01,)), 70.0, []
    for seed in range(10):
        source = SyntheticRequests([rate] * 100, (20,), (1,), longest=64, seed=seed)
        found = simulate_nodes(source, times, SimulatedNodes((1,)), slo_s=SLO_S, overhead_s=0.0)
        means.append(found.latencies_s[700:].mean())
    used = rate * 0.01
    expected = 0.01 + used * 0.01 / (2 * (1 - used))
    assert abs(np.mean(means) - expected) < 4 * np.std(means, ddof=1) / math.sqrt(10)


@pytest.mark.parametrize("known", [False, True])
def test_one_node_with_one_entrance_is_the_cluster(known: bool) -> None:
    source = shifting(150.0, 40)
    history = length_history(source, 10) if known else None
    system = make_system(SystemName.EARLIEST, TIMES, gpus=6, slo_s=SLO_S, history=history, period_s=12.0)
    expected = simulate(system, source)
    node = SimulatedNodes((6,), depth=1)  # there each query waits for one instance
    found = simulate_nodes(source, TIMES, node, slo_s=SLO_S, history=history, period_s=12.0)
    np.testing.assert_array_equal(found.latencies_s, expected.latencies_s)
    assert expected.replaced > 2
    assert sum(plan.moves for plan in found.plans) == 2 * expected.replaced
    assert found.remote == 0


@st.composite
def clusters(draw: st.DrawFn) -> SimulatedNodes:
    """Nodes of which any may be lost, some for good, but not all entrances; some start with the workload."""
    devices = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    entrances = draw(st.integers(1, len(devices)))
    outages = []
    stays = draw(st.integers(0, entrances - 1))
    for node in range(len(devices)):
        at = draw(st.sampled_from([0.0, 0.5, 1.0, 1.7]))
        for _ in range(draw(st.integers(0, 2))):
            start_s = draw(st.sampled_from([0.01, 0.3, 2.0, *([] if node == stays else [math.inf])]))
            outages.append(NodeOutage(node, at, start_s))
            at += start_s + draw(st.floats(0.01, 1.0))
            if at == math.inf:
                break
    return SimulatedNodes(
        devices,
        entrances,
        all_entrances=draw(st.booleans()),
        exchange_s=draw(st.sampled_from([None, 0.05])),
        hop_s=draw(st.sampled_from([0.0, 0.0005, 0.02])),
        notice_s=draw(st.sampled_from([0.0, 0.05, 0.5])),
        lost_after_s=draw(st.sampled_from([0.0, 1.0])),
        replacement_s=draw(st.sampled_from([0.0, 0.1, 1.5])),
        outages=tuple(outages),
    )


@settings(max_examples=75, deadline=None)
@given(clusters(), st.sampled_from([20.0, 200.0]), st.integers(0, 3))
def test_every_query_is_answered_once_whatever_nodes_are_lost(nodes: SimulatedNodes, rate: float, seed: int) -> None:
    source = requests(rate, seconds=3, seed=seed)
    found = run(source, nodes, period_s=1.0, overhead_s=0.0)
    arrivals = np.concatenate([second.times for second in source])
    np.testing.assert_array_equal(np.sort(found.arrivals_s), arrivals)
    assert found.latencies_s.min(initial=1.0) >= 0.01 - 1e-9
    for sample in found.samples:
        assert sum(sample.instances) <= sum(nodes.devices)
        assert sample.nodes <= len(nodes.devices)
    again = run(source, nodes, period_s=1.0, overhead_s=0.0)
    np.testing.assert_array_equal(again.latencies_s, found.latencies_s)
    assert again.plans == found.plans


def test_a_query_on_another_node_takes_two_hops_more() -> None:
    """The only instance of the short runtime is on the second node, which no query arrives at."""
    lone = RecordedRequests(np.array([0.1, 0.5]), np.array([20, 200]), 256)
    history = LengthHistory({20: 100.0}, 10.0)
    nodes = SimulatedNodes((1, 2), hop_s=0.003)
    found = simulate_nodes(lone, TIMES, nodes, slo_s=SLO_S, history=history, overhead_s=0.1)
    assert found.latencies_s == pytest.approx([0.01 + 0.006 + 0.1, 0.04 + 0.1])
    assert found.remote == 0.5


def test_queries_of_several_entrances_share_an_instance_in_turn() -> None:
    """Three entrances send to one instance of the short runtime, on a fourth node, at the same time."""
    source = RecordedRequests(np.array([0.1, 0.1, 0.1]), np.array([20, 20, 20]), 256)
    history = LengthHistory({20: 100.0}, 10.0)
    nodes = SimulatedNodes((1, 1, 1, 2), entrances=3, hop_s=0.0)
    found = simulate_nodes(source, TIMES, nodes, slo_s=SLO_S, history=history, overhead_s=0.0, seed=3)
    assert sorted(found.latencies_s) == pytest.approx([0.01, 0.02, 0.03])


def test_nodes_that_are_no_entrances_give_their_longest_runtime_back() -> None:
    """Short queries at one of four nodes: the same placement as that of the controller's plan for these nodes."""
    history, source = LengthHistory({20: 3000.0, 200: 1.0}, 10.0), requests(250.0)
    counts = {}
    for all_entrances in (True, False):
        nodes = SimulatedNodes((2,) * 4, all_entrances=all_entrances)
        found = simulate_nodes(source, TIMES, nodes, slo_s=SLO_S, history=history)
        counts[all_entrances] = found.samples[0].instances
        assert len(found.latencies_s) == sum(len(second.times) for second in source)
    assert (counts[True][-1], counts[False][-1]) == (4, 1)
    assert sum(counts[True]) == sum(counts[False]) == 8
    demand = demand_by_runtime(history.by_length, TIMES.max_lengths, observed_s=history.seconds, slo_s=SLO_S)
    profiles = tuple(RuntimeProfile.from_service(each, SLO_S, 120.0) for each in TIMES.static_s)
    assert solve(AllocationProblem(8, profiles, tuple(demand), 1)).instances == counts[False]


class TestLosses:
    NODES = SimulatedNodes((3, 3, 3), entrances=2, lost_after_s=5.0, outages=(NodeOutage(2, 3.5, 10.0),))

    def test_plans_follow_a_loss_and_a_return(self) -> None:
        found = run(requests(250, 20), self.NODES, period_s=100.0, min_gain=0.9)
        by_second = {sample.at: sample for sample in found.samples}
        assert [by_second[at].nodes for at in (3.0, 4.0, 13.0, 14.0)] == [3, 2, 2, 3]
        # Given up 5 s after the loss, in the reading after 8.5 s; back at 13.5 s.
        assert [plan.at for plan in found.plans] == [9.0, 14.0]
        assert sum(by_second[20.0].instances) == 9
        assert found.again > 0

    def test_nothing_is_decided_while_a_node_may_return(self) -> None:
        nodes = replace(self.NODES, lost_after_s=60.0)
        found = run(requests(150, 20), nodes, period_s=2.0)
        assert [plan.at for plan in found.plans if 3.5 < plan.at < 13.5] == []
        assert found.plans[-1].at > 14

    def test_latency_is_high_only_around_the_loss(self) -> None:
        nodes = replace(self.NODES, notice_s=1.0)
        found = run(requests(220, 20), nodes, period_s=100.0, min_gain=0.9)
        slow = found.arrivals_s[found.latencies_s > 0.8]
        assert len(slow) > 0
        assert slow.min() > 3.0
        assert slow.max() < 4.6

    def test_queries_of_a_lost_entrance_go_to_another_one(self) -> None:
        nodes = SimulatedNodes((1, 1), entrances=2, notice_s=0.2, outages=(NodeOutage(1, 1.0, math.inf),))
        found = run(requests(40, 3), nodes)
        assert found.again > 0
        assert found.samples[-1].nodes == 1
        late = found.latencies_s[np.abs(found.arrivals_s - 1.0) < 0.05]
        assert late.max() > 0.2

    def test_queries_wait_while_no_entrance_is_up(self) -> None:
        nodes = SimulatedNodes((2,), outages=(NodeOutage(0, 0.0, 1.5),))
        found = run(requests(20, 3), nodes)
        early = found.arrivals_s < 1.0
        assert found.latencies_s[early].min() > 0.5
        assert [sample.nodes for sample in found.samples[:2]] == [0, 1]
        assert found.samples[0].waiting > 10


def test_a_node_that_starts_later_joins_and_is_planned_with() -> None:
    nodes = SimulatedNodes((2, 4), outages=(NodeOutage(1, 0.0, 5.2),))
    found = run(shifting(60, 20), nodes, period_s=100.0)
    assert [(plan.at, "6 instances" in plan.reason or plan.moves > 0) for plan in found.plans[:1]] == [(6.0, True)]
    assert [sum(found.samples[at].instances) for at in (3, 19)] == [2, 6]


def test_replacements_are_a_few_at_a_time() -> None:
    """From the best allocation for short queries to that for long ones, of 40 devices in stages of two."""
    nodes = SimulatedNodes((8,) * 5, entrances=2)
    found = run(shifting(340, 40), nodes, period_s=10.0)
    loading = [40 - sum(sample.instances) for sample in found.samples]
    assert max(loading) == 2
    longest = [sample.instances[-1] for sample in found.samples]
    assert longest[-1] > 2 * longest[0]
    assert all(abs(b - a) <= 2 for a, b in pairwise(longest))


def mean_ms(nodes: SimulatedNodes, rate: float) -> float:
    """Return the mean latency where hops are not what differs."""
    source, history = requests(rate), length_history(requests(rate, seed=5))
    return simulate_nodes(source, TIMES, replace(nodes, hop_s=0.0), slo_s=SLO_S, history=history).mean_ms


def test_entrances_with_assigned_nodes_answer_as_soon_as_one() -> None:
    one, four = (mean_ms(SimulatedNodes((4,) * 24, entrances), 3500) for entrances in (1, 4))
    assert four < 1.1 * one


class Undivided(CompletionRule):
    """The rule where nothing is known of how the instances are divided."""

    divides = False


def test_near_capacity_an_own_query_at_an_assigned_instance_does_not_count_for_others() -> None:
    """Counted once per entrance, queries go to longer runtimes while the queue is short."""
    one, four = (SimulatedNodes((4,) * 24, entrances) for entrances in (1, 4))
    least = mean_ms(one, 5000)
    assert mean_ms(replace(one, rule=Undivided()), 5000) == least
    assert mean_ms(four, 5000) < 1.25 * least < mean_ms(replace(four, rule=Undivided()), 5000)


def test_hops_do_not_idle_the_instances_of_other_nodes() -> None:
    """One entrance over four nodes, hops as long as the shortest inference: 70 % of the instances' time is enough."""
    source, history = requests(900), length_history(requests(900, seed=5))
    near, far, one = (SimulatedNodes((6,) * 4, 1, depth=n, hop_s=hop) for n, hop in ((2, 0.0), (2, 0.005), (1, 0.005)))
    means = [simulate_nodes(source, TIMES, nodes, slo_s=SLO_S, history=history).mean_ms for nodes in (near, far, one)]
    assert means[1] < means[0] + 2 * 5.0 + 2.0 < means[2]


def test_entrances_without_assigned_nodes_do_not() -> None:
    one, four = (mean_ms(SimulatedNodes((4,) * 24, entrances, affinity=False), 3500) for entrances in (1, 4))
    assert four > 1.3 * one


def test_entrances_that_exchange_balance_better() -> None:
    """Near capacity, entrances that know their own queries only send them to instances that others have filled."""
    alone = SimulatedNodes((4,) * 24, entrances=4, affinity=False)
    assert mean_ms(replace(alone, exchange_s=0.005), 4500) < 0.9 * mean_ms(alone, 4500)


def test_random_outages_do_not_overlap_and_are_reproducible() -> None:
    found = random_outages(range(20), 600.0, every_s=200.0, start_s=40.0, seed=1)
    assert found == random_outages(range(20), 600.0, every_s=200.0, start_s=40.0, seed=1)
    assert found != random_outages(range(20), 600.0, every_s=200.0, start_s=40.0, seed=2)
    assert 30 < len(found) < 70
    SimulatedNodes((1,) * 20, outages=found)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"devices": ()}, "devices must be one or more numbers of at least 1"),
        ({"devices": (1, 0)}, "devices must be one or more numbers of at least 1"),
        ({"entrances": 3}, "entrances must be between 1 and the number of nodes, 2, got 3"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"hop_s": -1.0}, "hop_s must be a finite number of at least 0 seconds, got -1"),
        ({"notice_s": math.inf}, "notice_s must be a finite number"),
        ({"exchange_s": 0.0}, "exchange_s must be a positive, finite number of seconds, got 0"),
        ({"outages": (NodeOutage(2, 1.0),)}, "node 2 of an outage is not one of the 2 nodes"),
        ({"outages": (NodeOutage(1, 1.0, 5.0), NodeOutage(1, 4.0))}, "outages of node 1 overlap: at 1 and at 4 s"),
        ({"outages": (NodeOutage(0, 1.0),)}, "every entrance is lost for good"),
    ],
)
def test_bad_settings_are_named(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        SimulatedNodes(**{"devices": (1, 1), **fields})  # type: ignore[arg-type]
    assert sentence in str(error.value)


def test_bad_outages_and_options_are_named() -> None:
    with pytest.raises(InvalidArgument, match="at_s of an outage must be a finite number of at least 0"):
        NodeOutage(0, -1.0)
    with pytest.raises(InvalidArgument, match="start_s of an outage must be above 0 seconds, got 0"):
        NodeOutage(0, 1.0, 0.0)
    with pytest.raises(InvalidArgument, match="every_s and start_s must be positive"):
        random_outages([0], 1.0, every_s=0.0, start_s=1.0)
    for options, sentence in (
        ({"overhead_s": -1.0}, "overhead per query must be at least 0 s, got -1"),
        ({"period_s": 0.5}, "allocation period must be at least 1 s, got 0.5"),
        ({"min_gain": 1.0}, "minimum gain must be at least 0 and less than 1, got 1"),
    ):
        with pytest.raises(InvalidArgument, match=sentence):
            run(requests(1, 1), SimulatedNodes((1,)), **options)
    with pytest.raises(InvalidArgument, match="queries have up to 256 tokens; the longest runtime accepts 64"):
        simulate_nodes(requests(1, 1), ServiceTimes((64,), (0.01,)), SimulatedNodes((1,)), slo_s=SLO_S)
