"""Several entrances of a simulated cluster, compared with a queue, with the cluster's simulation and each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.policies.entrance import EntrancePolicy, InstancePlace
from tidal.errors import InvalidArgument
from tidal.simulator.arlo.cluster import Cluster
from tidal.simulator.arlo.entrances import Entrances, Knowledge, simulate_entrances
from tidal.simulator.arlo.service_times import ServiceTimes
from tidal.simulator.arlo.workload import SyntheticRequests

TIMES = ServiceTimes((64, 128), (0.002, 0.004))
SLO_S = 0.1


def requests(rate: float, seconds: int = 3, seed: int = 0) -> SyntheticRequests:
    return SyntheticRequests([rate] * seconds, (20, 100), (3, 1), longest=128, seed=seed)


def arrivals(source: SyntheticRequests) -> tuple[list[float], list[int]]:
    seconds = list(source)
    return [t for each in seconds for t in each.times.tolist()], [n for each in seconds for n in each.lengths.tolist()]


def test_one_instance_is_a_queue() -> None:
    source = requests(200)
    found = simulate_entrances(source, TIMES, (0, 1), SLO_S, Entrances(1, 1, hop_s=0))
    times, _ = arrivals(source)
    expected, free = [], 0.0  # Lindley's recursion
    for now in times:
        free = max(now, free) + 0.004
        expected.append(free - now)
    np.testing.assert_allclose(found.latencies_s, expected, rtol=0, atol=1e-9)
    assert found.remote == 0


@pytest.mark.parametrize("knowledge", [Knowledge.EXACT, Knowledge.ANSWERS, Knowledge.OWN])
def test_one_entrance_without_hops_is_the_cluster(knowledge: Knowledge) -> None:
    source = requests(500)
    found = simulate_entrances(source, TIMES, (1, 1), SLO_S, Entrances(1, 2, knowledge, hop_s=0))
    policy = PartitionedPolicy(TIMES.max_lengths, TIMES.static_s, SLO_S, (1, 1))
    cluster = Cluster(policy, lambda batch: TIMES.static_s[batch.runtime], 2)
    times, lengths = arrivals(source)
    cluster.advance(times, lengths, 100.0)
    np.testing.assert_allclose(sorted(found.latencies_s), sorted(cluster.latencies), rtol=0, atol=1e-9)


@given(
    number=st.integers(1, 4),
    knowledge=st.sampled_from(Knowledge),
    margin=st.integers(0, 2),
    instances=st.tuples(st.integers(0, 5), st.integers(1, 5)),
    rate=st.floats(10, 3000),
)
@settings(deadline=None, max_examples=40)
def test_every_request_is_answered_after_its_service_and_hops(
    number: int, knowledge: Knowledge, margin: int, instances: tuple[int, int], rate: float
) -> None:
    source = requests(rate, seconds=1)
    found = simulate_entrances(source, TIMES, instances, SLO_S, Entrances(number, 4, knowledge, margin))
    _, lengths = arrivals(source)
    assert len(found.latencies_s) == len(lengths)
    least = np.where(np.asarray(lengths) <= 64, TIMES.static_s[0 if instances[0] else 1], TIMES.static_s[1])
    assert np.all(found.latencies_s >= least - 1e-9)
    assert 0 <= found.remote <= 1


def test_equal_runs_give_equal_results() -> None:
    entrances = Entrances(4, 4, margin=1)
    one, other = (simulate_entrances(requests(1500), TIMES, (2, 4), SLO_S, entrances) for _ in range(2))
    np.testing.assert_array_equal(one.latencies_s, other.latencies_s)
    assert one.remote == other.remote > 0


def test_reports_and_answers_replace_most_of_what_is_not_known() -> None:
    """Near capacity, entrances that know their own requests only send them to instances that others have filled."""

    def mean(rate: float, knowledge: Knowledge, margin: int = 0) -> float:
        entrances = Entrances(4, 4, knowledge, margin)
        return float(simulate_entrances(requests(rate, 6), TIMES, (4, 4), SLO_S, entrances).latencies_s.mean())

    for rate in (2400, 2800):
        assert mean(rate, Knowledge.ANSWERS, 1) < 1.3 * mean(rate, Knowledge.EXACT)
    assert mean(2800, Knowledge.OWN) > 1.5 * mean(2800, Knowledge.ANSWERS, 1)
    assert mean(2400, Knowledge.SHARE) > 1.5 * mean(2400, Knowledge.ANSWERS, 1)


def policy(places: Sequence[tuple[int, int]], node: int = 0, margin: int = 0) -> EntrancePolicy:
    made = [InstancePlace(lane, *place) for lane, place in enumerate(places)]
    return EntrancePolicy(node, (64, 128), (50, 25), made, margin=margin)


def test_equal_instances_are_used_in_turn_local_ones_first() -> None:
    entrance = policy([(1, 0), (0, 0), (1, 0), (0, 1)])
    assert [entrance.dispatch(10) for _ in range(3)] == [1, 2, 0]
    # A local one is preferred while a remote one has at most `margin` requests fewer.
    patient = policy([(1, 0), (0, 0), (0, 1)], margin=2)
    assert [patient.dispatch(10) for _ in range(4)] == [1, 1, 1, 0]


def test_others_requests_are_those_of_the_last_report_or_answer() -> None:
    entrance = policy([(0, 0), (1, 0), (0, 1)])
    entrance.reported({0: 5, 1: 1})
    assert [entrance.dispatch(10) for _ in range(3)] == [1, 1, 1]
    # The answer says that two requests are left there: one of them is from another entrance, as before.
    entrance.answered(1, 3)
    entrance.reported({0: 0})
    assert [entrance.dispatch(10) for _ in range(4)] == [0, 0, 0, 0]


def test_a_congested_runtime_gives_to_the_next_longer_one() -> None:
    entrance = policy([(0, 0), (0, 1)])
    lanes = [entrance.dispatch(10) for _ in range(60)]
    assert lanes.index(1) == 43  # 0.85 of 50, rounded up
    assert all(a <= b for a, b in pairwise(lanes[:50]))
    assert policy([(0, 0), (0, 1)]).dispatch(65) == 1


def test_wrong_clusters_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no instance has the longest runtime"):
        policy([(0, 0)])
    with pytest.raises(InvalidArgument, match="at least 1 entrance, got 0"):
        Entrances(0, 1)
    with pytest.raises(InvalidArgument, match="3 entrances need as many nodes, got 2"):
        Entrances(3, 2)
    with pytest.raises(InvalidArgument, match="margin and hop_s"):
        Entrances(1, 1, margin=-1)
