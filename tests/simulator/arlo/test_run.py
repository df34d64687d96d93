"""Whole simulations: no lost request, reproducible runs, allocation, scaling, failures and dispatching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tidal.arlo.policies import ArloQuery, PartitionedPolicy
from tidal.arlo.policies.levels import RuntimeInstance
from tidal.arlo.scheduling import Autoscaler, InstanceLoad, Scaling, least_busy
from tidal.errors import InvalidArgument
from tidal.simulator.arlo import (
    ClusterResult,
    GpuFailures,
    LengthHistory,
    ScalingBounds,
    ServiceTimes,
    SyntheticRequests,
    SystemName,
    make_system,
    simulate,
)
from tidal.simulator.arlo.scaling import ClusterObservation, Headroom, ScalingChange

TIMES = ServiceTimes((64, 128, 256), (0.01, 0.02, 0.04), tuple(0.02 + n * 1e-4 for n in range(257)))
SLO_S = 0.4
MIX: dict[str, Any] = {"lengths": [30, 100, 200], "weights": [4, 2, 1], "longest": 256}


def run(
    name: str, workload: SyntheticRequests, gpus: int = 6, scale: ScalingBounds | None = None, **options: Any
) -> ClusterResult:
    made = {k: options.pop(k) for k in ("history", "period_s", "min_gain", "fill") if k in options}
    return simulate(
        make_system(SystemName(name), TIMES, gpus=gpus, slo_s=SLO_S, scale=scale, **made), workload, **options
    )


@pytest.mark.parametrize("name", [each.value for each in SystemName])
def test_every_request_is_answered_once_by_every_system(name: str) -> None:
    workload = SyntheticRequests([150.0] * 5 + [600.0] * 2 + [150.0] * 5, **MIX)  # overloaded in the middle
    result = run(name, workload)
    arrived = sum(len(second.times) for second in workload)
    assert result.requests == arrived == len(result.latencies_s)
    assert result.latencies_s.min() >= (0.01 if name != "dt" else 0.02) + 0.0008 - 1e-9
    assert [each.at for each in result.moments] == [float(i + 1) for i in range(len(result.moments))]
    assert result.mean_gpus == 6
    assert 0 < result.utilisation <= 1
    assert result.name == name


@pytest.mark.parametrize("name", ["arlo", "even", "global", "ilb", "ig", "infaas"])
def test_more_runtimes_than_gpus(name: str) -> None:
    """Requests of the runtime without a GPU run on a longer one."""
    result = run(name, SyntheticRequests([20.0] * 5, **MIX), gpus=2)
    assert result.moments[0].instances == (0, 1, 1)
    assert len(result.latencies_s) == result.requests > 50
    assert result.latencies_s.min() >= 0.02


@pytest.mark.parametrize("failures", [None, GpuFailures(every_s=20.0, repair_s=2.0, seed=5)])
def test_equal_seeds_give_equal_runs(failures: GpuFailures | None) -> None:
    def once(seed: int) -> ClusterResult:
        return run("arlo", SyntheticRequests([200.0] * 30, seed=seed, **MIX), failures=failures, period_s=10)

    one, again, other = once(1), once(1), once(2)
    np.testing.assert_array_equal(one.latencies_s, again.latencies_s)
    assert one.moments == again.moments
    assert one.mean_ms != other.mean_ms


def test_the_overhead_is_added_to_latencies_and_not_to_busy_time() -> None:
    workload = SyntheticRequests([100.0] * 5, **MIX)
    without, with_it = run("arlo", workload, overhead_s=0.0), run("arlo", workload, overhead_s=0.1)
    np.testing.assert_allclose(with_it.latencies_s, without.latencies_s + 0.1)
    assert with_it.busy_s == without.busy_s


class TestAllocation:
    def test_it_follows_the_lengths_after_every_period(self) -> None:
        workload = SyntheticRequests([100.0] * 25, [30], [1], longest=256)
        result = run("arlo", workload, gpus=6, period_s=10)
        by_second = {int(each.at): each.instances for each in result.moments}
        assert by_second[1] == by_second[10] == (2, 2, 2)
        assert by_second[20][0] > 2
        assert result.replaced == by_second[20][0] - 2
        assert sum(by_second[20]) == 6
        assert by_second[20][2] >= 1

    def test_a_small_gain_or_no_demand_changes_nothing(self) -> None:
        workload = SyntheticRequests([100.0] * 25, [30], [1], longest=256)
        assert run("arlo", workload, period_s=10, min_gain=0.0).replaced > 0
        assert run("arlo", workload, period_s=10, min_gain=0.9).replaced == 0
        assert (
            run("arlo", SyntheticRequests([0.0] * 25, [30], [1], longest=256), period_s=10, min_gain=0.0).replaced == 0
        )

    def test_even_and_infaas_do_not_reallocate(self) -> None:
        workload = SyntheticRequests([100.0] * 25, [30], [1], longest=256)
        for name in ("even", "infaas", "global"):
            result = run(name, workload, period_s=10)
            assert {each.instances for each in result.moments} == {(2, 2, 2)}
            assert result.replaced == 0

    def test_history_decides_the_start_of_some_systems(self) -> None:
        history = LengthHistory({30: 1000}, 10.0)
        workload = SyntheticRequests([10.0] * 2, [30], [1], longest=256)
        starts = {n: run(n, workload, history=history).moments[0].instances for n in ("arlo", "global", "even")}
        assert starts["arlo"] == starts["global"] == (5, 0, 1)
        assert starts["even"] == (2, 2, 2)

    def test_it_is_faster_than_an_even_allocation(self) -> None:
        workload = SyntheticRequests([250.0] * 30, [30, 100, 200], [20, 3, 1], longest=256)
        assert run("arlo", workload, period_s=10).mean_ms < run("even", workload, period_s=10).mean_ms


class TestScaling:
    BURST = SyntheticRequests([50.0] * 5 + [700.0] * 60 + [20.0] * 400, **MIX)

    @pytest.mark.parametrize("name", ["arlo", "st", "dt", "infaas"])
    def test_it_grows_and_shrinks_within_its_bounds(self, name: str) -> None:
        result = run(name, self.BURST, gpus=4, scale=ScalingBounds(min_gpus=3, max_gpus=8))
        gpus = [each.gpus for each in result.moments]
        assert max(gpus) == 8
        assert gpus[464] < 8
        assert min(gpus) >= 3
        steps = np.diff(gpus)
        assert set(steps.tolist()) <= {-1, 0, 1}

    def test_the_last_instance_of_the_longest_runtime_is_kept(self) -> None:
        result = run(
            "arlo",
            SyntheticRequests([1.0] * 200, [30], [1], longest=256),
            gpus=3,
            scale=ScalingBounds(min_gpus=1, max_gpus=4),
        )
        assert result.moments[-1].gpus == 1
        assert result.moments[-1].instances == (0, 0, 1)

    def test_without_bounds_the_number_of_gpus_is_fixed(self) -> None:
        assert {each.gpus for each in run("arlo", self.BURST, gpus=8).moments} == {8}

    def test_headroom_by_hand(self) -> None:
        scaler = Headroom(0.2, min_gpus=1, max_gpus=4)

        def decide(now: float, *busy: float) -> ScalingChange | None:
            return scaler.decide(now, ClusterObservation(3, (2, 1), np.empty(0), busy))

        assert [decide(i, 1.5, 0.85) for i in range(4)] == [None] * 4
        assert decide(4, 1.5, 0.95) is None  # 2.37 of 2.4 on the mean
        assert decide(5, 1.5, 1.1) == ScalingChange(Scaling.ADD, 1)  # its instances were busier: 0.92 against 0.75
        assert [decide(6 + i, 1.5, 1.0) for i in range(4)] == [None] * 4  # observes a new window
        calm = Headroom(0.2, min_gpus=1, max_gpus=4)
        decisions = [calm.decide(i, ClusterObservation(3, (2, 1), np.empty(0), (0.1, 0.2))) for i in range(60)]
        assert decisions[:59] == [None] * 59
        assert decisions[59] == ScalingChange(Scaling.RELEASE, 0)
        enough = Headroom(0.2, min_gpus=1, max_gpus=4)  # but not for one GPU less: 1.7 of 1.6
        assert {enough.decide(i, ClusterObservation(3, (2, 1), np.empty(0), (0.7, 1.0))) for i in range(99)} == {None}
        full = Headroom(0.2, min_gpus=3, max_gpus=3)
        assert {full.decide(i, ClusterObservation(3, (2, 1), np.empty(0), (2.0, 1.0))) for i in range(9)} == {None}

    def test_nothing_is_released_while_gpus_are_being_replaced(self) -> None:
        class Hasty:
            def decide(self, now: float, seen: ClusterObservation) -> ScalingChange | None:
                return ScalingChange(Scaling.RELEASE, 1) if now >= 11 and seen.gpus > 5 else None

        system = make_system(SystemName.ARLO, TIMES, gpus=6, slo_s=SLO_S, period_s=10)
        workload = SyntheticRequests([100.0] * 19, [30, 100], [9, 1], longest=256)
        result = simulate(replace(system, scaler=Hasty()), workload, replacement_batch=1, replacement_s=3.5)
        gpus = {int(each.at): each.gpus for each in result.moments}
        assert result.moments[10].instances != (2, 2, 2)
        assert gpus[11] == gpus[13] == 6
        assert gpus[19] == 5

    def test_the_autoscaler_is_that_of_the_controller(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[float] = []
        decide = Autoscaler.decide

        def recording(self: Autoscaler, now: float, gpus: int) -> Scaling | None:
            asked.append(now)
            return decide(self, now, gpus)

        monkeypatch.setattr(Autoscaler, "decide", recording)
        result = run("arlo", SyntheticRequests([10.0] * 7, **MIX), scale=ScalingBounds(min_gpus=1, max_gpus=9))
        assert asked == [each.at for each in result.moments]
        assert least_busy([InstanceLoad(0, 1, 0.0)], 1) is None


class TestFailures:
    def test_no_request_is_lost_and_latencies_rise(self) -> None:
        workload = SyntheticRequests([120.0] * 40, **MIX)
        sound, failing = run("arlo", workload), run("arlo", workload, failures=GpuFailures(30.0, 5.0))
        assert failing.requests == len(failing.latencies_s) == sound.requests
        assert failing.failed_batches > 5
        assert failing.mean_ms > sound.mean_ms
        assert sound.failed_batches == 0

    def test_with_reallocation_and_scaling_at_once(self) -> None:
        workload = SyntheticRequests([400.0] * 20 + [40.0] * 90, drift=0.4, drift_s=20, **MIX)
        result = run(
            "arlo",
            workload,
            scale=ScalingBounds(min_gpus=2, max_gpus=12),
            failures=GpuFailures(40.0, 5.0),
            period_s=10,
            gpus=5,
        )
        assert result.requests == len(result.latencies_s)
        assert all(each.instances[-1] >= 1 and 2 <= each.gpus <= 12 for each in result.moments)

    def test_polymorphic_placement_supports_no_failures_and_no_scaling(self) -> None:
        with pytest.raises(InvalidArgument, match="GPU failures are not supported with polymorphic placement"):
            run("polymorphic", SyntheticRequests([1.0], **MIX), failures=GpuFailures(1.0))
        with pytest.raises(InvalidArgument, match="no instances to scale"):
            run("polymorphic", SyntheticRequests([1.0], **MIX), scale=ScalingBounds(1, 2))


class TestDispatch:
    """Dispatching by the replacements of Algorithm 1."""

    def chosen(self, name: str, loads: list[list[int]], length: int, fill: float = 0.25) -> tuple[int, int]:
        system = make_system(SystemName(name), TIMES, gpus=sum(map(len, loads)), slo_s=SLO_S, fill=fill)
        policy = system.policy
        assert isinstance(policy, PartitionedPolicy)
        policy.allocate([len(each) for each in loads])
        instances: list[list[RuntimeInstance]] = [[] for _ in loads]
        for each in policy._instances.values():
            instances[each.runtime].append(each)
        for runtime, counts in enumerate(loads):
            for instance, waiting in zip(instances[runtime], counts, strict=True):
                instance.waiting = waiting
                policy._levels[runtime].update(instance)
        policy.submit(ArloQuery(length, 0.0))
        now = [[each.waiting for each in group] for group in instances]
        (grown,) = [(r, i) for r, group in enumerate(now) for i, n in enumerate(group) if n == loads[r][i] + 1]
        return grown

    def test_intra_group_load_balance(self) -> None:
        assert self.chosen("ilb", [[9, 8], [0], [0]], 10) == (0, 1)
        assert self.chosen("ilb", [[0, 0], [5, 4], [0]], 100) == (1, 1)

    def test_inter_groups_greedy(self) -> None:
        assert self.chosen("ig", [[9, 8], [7], [6]], 10) == (2, 0)
        assert self.chosen("ig", [[2, 2], [2], [2]], 10) == (0, 0)
        assert self.chosen("ig", [[0], [3], [2]], 100) == (2, 0)

    def test_bin_packing(self) -> None:
        # Capacities 40, 20 and 10; a quarter of them may be used: 10, 5 and 2.
        assert self.chosen("infaas", [[3, 9], [3], [1]], 10) == (0, 1)  # 9/40
        assert self.chosen("infaas", [[3, 10], [3], [1]], 10) == (1, 0)  # 3/20
        assert self.chosen("infaas", [[10, 10], [5], [1]], 10) == (2, 0)
        assert self.chosen("infaas", [[10, 11], [6], [2]], 10) == (2, 0)  # all are full: the least used, 2/10
        assert self.chosen("infaas", [[0, 0], [5], [2]], 100) == (2, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "gpus must be at least 1, got 0"),
        ({"period_s": 0.5}, "allocation period must be at least 1 s"),
        ({"min_gain": 1.0}, "minimum gain must be at least 0 and less than 1"),
        ({"overhead_s": -1.0}, "overhead per query must be at least 0 s"),
        ({"replacement_s": float("nan")}, "replacement delay must be"),
    ],
)
def test_bad_inputs_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run("arlo", SyntheticRequests([1.0], **MIX), **options)


def test_bad_bounds_and_failures_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="min_gpus must be between 1 and max_gpus"):
        run("dt", SyntheticRequests([1.0], **MIX), scale=ScalingBounds(5, 4))
    with pytest.raises(InvalidArgument, match="headroom must be between 0 and 1"):
        run("dt", SyntheticRequests([1.0], **MIX), scale=ScalingBounds(1, 4, headroom=1.0))
    with pytest.raises(InvalidArgument, match="mean time between failures must be a positive"):
        GpuFailures(0.0)
    with pytest.raises(InvalidArgument, match="SLO must be a positive"):
        make_system(SystemName.ST, TIMES, gpus=1, slo_s=0.0)


def percentages(result: ClusterResult) -> Sequence[float]:
    return [result.percentile_ms(p) for p in (0, 50, 98, 100)]


def test_statistics_of_a_result() -> None:
    result = run("arlo", SyntheticRequests([100.0] * 5, **MIX), gpus=20)
    assert percentages(result) == sorted(percentages(result))
    assert result.share_over(0.0) == 1.0
    assert result.share_over(10.0) == 0.0
    empty = run("arlo", SyntheticRequests([0.0] * 3, **MIX))
    assert (empty.mean_ms, empty.percentile_ms(98), empty.share_over(0.1), empty.requests) == (0, 0, 0, 0)
    assert Counter(each.waiting for each in empty.moments) == {0: 3}
