"""How many instances and nodes a cluster uses: sequences computed by hand, and what holds for any traffic."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.controller.counts import ModelCounts
from tidal.controller.scaling import ModelScaler, NodePlan, NodeScaler, NodeUse, ScalingSettings
from tidal.errors import InvalidArgument

LATE, MEDIUM, FAST = (ModelCounts(1.0, (100.0,), (0.5,), 100, *counts) for counts in ((100, 100), (100, 0), (0, 0)))


def used(
    scaler: ModelScaler,
    traffic: ModelCounts,
    seconds: range,
    devices: int = 3,
    nodes: int = 1,
    *,
    more_nodes: bool = False,
) -> list[int]:
    """Instances in use after each second of this traffic, with a change of the instances restarting observation."""
    found = [scaler.wanted]
    for second in seconds:
        scaler.observe(traffic)
        found.append(scaler.decide(float(second), devices, nodes, more_nodes=more_nodes))
        if found[-1] != found[-2]:
            scaler.changed(float(second))
    return found[1:]


class TestInstances:
    def test_one_more_after_5_s_and_one_fewer_after_60(self) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(), 1)
        assert used(scaler, LATE, range(0, 6)) == [1, 1, 1, 1, 1, 2]
        assert scaler.reason == "the 98th percentile of the latency reached 95 % of the SLO"
        assert used(scaler, LATE, range(6, 30))[-1] == 3  # as many as the devices hold
        # 60 s begin with the last change, at 10 s, and include late queries; the next 60 do not.
        assert used(scaler, FAST, range(30, 131))[-2:] == [3, 2]
        assert scaler.reason == "the 98th percentile of the latency stayed below 50 % of the SLO for 60 s"
        assert used(scaler, FAST, range(131, 191))[-2:] == [2, 1]

    def test_each_node_keeps_an_instance(self) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(), 6)
        assert used(scaler, FAST, range(0, 600), devices=6, nodes=2)[-1] == 2
        assert scaler.wanted == 1  # one node less is enough, though not two: nothing was measured with fewer
        assert used(scaler, FAST, range(600, 601), devices=9, nodes=3) == [3]
        assert scaler.reason == "1 instances are below the minimum of 2"
        assert used(scaler, LATE, range(601, 607), devices=9, nodes=3) == [3, 3, 3, 3, 3, 4]

    def test_one_instance_more_than_devices_asks_for_a_node_until_the_load_falls(self) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(), 3)
        assert used(scaler, LATE, range(0, 60)) == [3] * 60
        assert scaler.wanted == 3  # no further node may be used
        used(scaler, LATE, range(60, 120), more_nodes=True)
        assert scaler.wanted == 4
        assert used(scaler, LATE, range(120, 121), devices=6, nodes=2) == [4]
        scaler = ModelScaler(0.1, ScalingSettings(), 4)
        assert used(scaler, FAST, range(0, 62), more_nodes=True)[-1] == 3
        assert scaler.wanted == 3

    def test_a_lost_node_keeps_the_wanted_number(self) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(), 6)
        assert used(scaler, MEDIUM, range(0, 9), devices=6, nodes=2)[-1] == 6
        assert used(scaler, MEDIUM, range(9, 18), devices=3, more_nodes=True)[-1] == 3
        assert scaler.wanted == 6
        assert used(scaler, MEDIUM, range(18, 19), devices=6, nodes=2) == [6]

    @pytest.mark.parametrize(("devices", "most"), [(6, 3), (3, None)])
    def test_from_one_instance_fewer_than_nodes_no_bound_is_passed(self, devices: int, most: int | None) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(max_instances=most), 2)
        assert used(scaler, LATE, range(0, 30), devices=devices, nodes=3)[-1] == 3
        assert scaler.wanted == 3

    def test_bounds(self) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(min_instances=2, max_instances=3), 1)
        assert used(scaler, LATE, range(0, 1), devices=6) == [2]
        assert used(scaler, LATE, range(1, 60), devices=6)[-1] == 3
        assert used(scaler, FAST, range(60, 600), devices=6)[-1] == 2
        scaler = ModelScaler(0.1, ScalingSettings(max_instances=2), 5)
        assert used(scaler, LATE, range(0, 1), devices=6) == [2]
        assert scaler.reason == "5 instances are above the maximum of 2"

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.integers(1, 30), st.sampled_from([LATE, MEDIUM, FAST]), st.integers(1, 3), st.integers(1, 3)),
            min_size=1,
            max_size=12,
        ),
        st.integers(1, 4),
        st.integers(0, 3) | st.none(),
        st.booleans(),
    )
    def test_any_traffic_stays_within_bounds_and_devices(
        self, spans: list[tuple[int, ModelCounts, int, int]], least: int, more: int | None, more_nodes: bool
    ) -> None:
        most = None if more is None else least + more
        scaler, now = ModelScaler(0.1, ScalingSettings(least, most), 1), 0
        for seconds, traffic, nodes, each in spans:
            devices = nodes * each
            found = used(scaler, traffic, range(now, now + seconds), devices, nodes, more_nodes=more_nodes)
            now += seconds
            lowest = max(least, nodes)
            assert all(nodes <= count <= devices for count in found)
            assert min(found) >= min(lowest, devices)
            assert most is None or max(found) <= max(most, nodes)
            assert scaler.wanted >= max(least, nodes - 1)

    @settings(max_examples=30, deadline=None)
    @given(st.sampled_from([LATE, MEDIUM, FAST]), st.integers(1, 6), st.integers(1, 2))
    def test_constant_traffic_ends_at_one_number(self, traffic: ModelCounts, begin: int, nodes: int) -> None:
        scaler = ModelScaler(0.1, ScalingSettings(), begin)
        used(scaler, traffic, range(0, 420), devices=6, nodes=nodes)
        found = used(scaler, traffic, range(420, 600), devices=6, nodes=nodes)
        assert set(found) == {{LATE: 6, FAST: nodes}.get(traffic, max(begin, nodes))}


def node(devices: int, instances: int, busy: float = 0.0, **drain: bool) -> NodeUse:
    return NodeUse({"m": devices}, {"m": instances}, busy, **drain)


class TestNodes:
    def test_as_many_as_the_instances_need(self) -> None:
        scaler = NodeScaler(1, 4, 30.0)
        nodes = {"a": node(3, 3)}
        assert scaler.decide(0.0, nodes, {"m": 3}) == NodePlan(1)
        found = scaler.decide(1.0, nodes, {"m": 4})
        assert found == NodePlan(2, "'m' needs 4 instances, and the devices of the nodes hold 3")
        assert scaler.decide(1.0, nodes, {"m": 7}).wanted == 3  # 4 instances more, 3 on each node
        assert scaler.decide(1.0, nodes, {"m": 99}).wanted == 4
        full = {name: node(3, 3) for name in "abcd"}
        assert scaler.decide(2.0, full, {"m": 13}).reason.endswith("hold 12; the maximum is 4 nodes")
        assert not scaler.may_grow(full)

    def test_a_released_node_is_used_before_one_is_requested(self) -> None:
        scaler = NodeScaler(1, 4, 30.0)
        nodes = {"a": node(3, 3), "b": node(3, 1, draining=True), "c": node(3, 1, draining=True, released=True)}
        assert scaler.decide(0.0, nodes, {"m": 4}).use == "c"
        assert scaler.decide(0.0, nodes, {"m": 3}).use is None

    def test_the_least_loaded_node_is_released_after_it_was_not_required_for_some_time(self) -> None:
        scaler = NodeScaler(1, 4, 30.0)
        nodes = {"a": node(3, 1, busy=0.2), "b": node(3, 1, busy=0.1)}
        assert scaler.decide(0.0, nodes, {"m": 2}) == NodePlan(2)
        assert scaler.decide(29.0, nodes, {"m": 2}) == NodePlan(2)
        assert scaler.decide(29.5, nodes, {"m": 7}).wanted == 3  # required: the time begins again
        assert scaler.decide(30.0, nodes, {"m": 2}) == NodePlan(2)
        assert scaler.decide(59.0, nodes, {"m": 2}) == NodePlan(2)
        assert scaler.decide(60.0, nodes, {"m": 2}) == NodePlan(
            1, "one node fewer holds all instances, for 30 s", None, "b"
        )
        moving = {**nodes, "c": node(3, 1), "b": node(3, 1, draining=True, moving=True, released=True)}
        for now in (200.0, 300.0):  # one after the other
            assert scaler.decide(now, moving, {"m": 2}) == NodePlan(2)

    @pytest.mark.parametrize(
        "nodes",
        [
            {"a": node(3, 3), "b": node(3, 1)},
            {"a": node(3, 2), "b": node(3, 2)},
            {"a": NodeUse({"m": 3}, {"m": 1}), "b": NodeUse({"n": 3}, {"n": 1})},
            # Beside 1 instance of m there are 2 devices for both models together.
            {"a": NodeUse({"m": 2, "n": 2}, {"m": 1, "n": 1}), "b": NodeUse({"m": 2, "n": 2}, {"m": 1, "n": 1})},
        ],
    )
    def test_no_node_is_released_whose_instances_do_not_fit_elsewhere(self, nodes: dict[str, NodeUse]) -> None:
        scaler = NodeScaler(1, 4, 0.0)
        assert scaler.decide(0.0, nodes, {}).release is None

    def test_nodes_of_one_device_are_released_once_one_instance_fewer_is_enough(self) -> None:
        nodes = {"a": node(1, 1, busy=0.1), "b": node(1, 1)}
        assert NodeScaler(1, 4, 0.0).decide(0.0, nodes, {"m": 2}).release is None
        assert NodeScaler(1, 4, 0.0).decide(0.0, nodes, {"m": 1}).release == "b"

    def test_bounds(self) -> None:
        two = {"a": node(3, 1), "b": node(3, 1)}
        assert NodeScaler(2, 4, 0.0).decide(0.0, two, {"m": 2}).release is None
        assert NodeScaler(3, 4, 0.0).decide(0.0, two, {"m": 2}) == NodePlan(3, "the minimum is 3 nodes")

    @settings(max_examples=200, deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from("abcde"),
            st.builds(
                lambda free, instances, draining: node(free + instances, instances, draining=draining),
                st.integers(0, 3),
                st.integers(1, 3),
                st.booleans(),
            ),
        ),
        st.integers(0, 20),
        st.integers(1, 3),
        st.integers(0, 3),
    )
    def test_any_nodes(self, nodes: Mapping[str, NodeUse], wanted: int, least: int, more: int) -> None:
        found = NodeScaler(least, least + more, 0.0).decide(0.0, nodes, {"m": wanted})
        active = {name: each for name, each in nodes.items() if not each.draining}
        assert found.wanted <= max(least + more, len(active))
        assert found.wanted >= min(least, len(active))
        if found.release is not None:
            others = [each for name, each in active.items() if name != found.release]
            assert len(others) >= least
            assert sum(each.devices["m"] for each in others) >= wanted


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_instances": 0}, "--min-instances must be at least 1, got 0"),
        ({"max_instances": -1}, "--max-instances must be at least 1, got -1"),
        ({"min_instances": 3, "max_instances": 2}, "--min-instances 3 exceeds --max-instances 2"),
        ({"min_nodes": 0}, "--min-nodes must be at least 1, got 0"),
        ({"max_nodes": 0}, "--max-nodes must be at least 1, got 0"),
        ({"min_nodes": 3, "max_nodes": 2}, "--min-nodes 3 exceeds --max-nodes 2"),
    ],
)
def test_bad_bounds_are_named(bounds: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        ScalingSettings(**bounds)
