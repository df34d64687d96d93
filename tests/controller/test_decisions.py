"""The controller's decisions about one model, on a fake clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.controller.counts import ModelCounts
from tidal.controller.decisions import AllocationDecision, ControllerSettings, ModelController, ModelProfile
from tidal.errors import InvalidArgument

PROFILE = ModelProfile((16, 32, 64), (0.005, 0.01, 0.02), 0.4)
EVEN = (1, 1, 1)


def counts(
    *queries: float, seconds: float = 1.0, requests: int | None = None, slow: int = 0, critical: int = 0
) -> ModelCounts:
    count = round(sum(queries)) if requests is None else requests
    return ModelCounts(seconds, queries, (0.1, 0.1, 0.1), count, slow, critical, 0.01 * count)


def control(present: tuple[int, ...] = EVEN, **options: float) -> ModelController:
    return ModelController(PROFILE, ControllerSettings(**{"period_s": 10.0, **options}), sum(present), 0.0)  # type: ignore[arg-type]


def drive(
    control: ModelController,
    present: tuple[int, ...],
    start: float,
    seconds: int,
    each: ModelCounts,
    devices: int = sum(EVEN),
) -> tuple[list[AllocationDecision], tuple[int, ...]]:
    """Observe and decide every second, and apply each decision."""
    decisions = []
    for second in range(1, seconds + 1):
        control.observe(each)
        decision = control.decide(start + second, present, devices)
        if decision is not None:
            decisions.append(decision)
            if decision.after != present:
                present = decision.after
                control.changed(start + second)
    return decisions, present


class TestPeriods:
    def test_one_decision_per_period_from_its_counts(self) -> None:
        model = control()
        first, present = drive(model, EVEN, 0, 10, counts(200, 0, 2))
        second, present = drive(model, present, 10, 10, counts(0, 0, 40))
        assert [d.action for d in first + second] == ["allocate", "allocate"]
        assert first[0].observed.seconds == 10
        assert first[0].observed.queries == (2000, 0, 20)
        assert first[0].demand == pytest.approx((80, 0, 0.8))  # in 0.4 s
        assert first[0].after == (2, 0, 1)
        assert second[0].before == (2, 0, 1)
        assert second[0].after == (0, 0, 3)
        assert second[0].mean_best_s < second[0].mean_before_s  # type: ignore[operator]

    def test_without_queries_it_keeps_the_allocation(self) -> None:
        decisions, present = drive(control(), EVEN, 0, 30, counts(0, 0, 0))
        assert [d.action for d in decisions] == ["keep"] * 3
        assert {d.reason for d in decisions} == {"there were no queries"}
        assert present == EVEN

    def test_a_small_gain_changes_nothing(self) -> None:
        (decision,), _ = drive(control(min_gain=0.9), EVEN, 0, 10, counts(100, 0, 2))
        assert decision.action == "keep"
        assert "16=2 32=0 64=1 is predicted to be" in decision.reason
        assert "below the minimum gain of 90 %" in decision.reason

    def test_the_best_allocation_stays(self) -> None:
        (decision,), _ = drive(control((2, 0, 1)), (2, 0, 1), 0, 10, counts(200, 0, 2))
        assert (decision.action, decision.reason) == ("keep", "the current allocation is the best one")

    def test_too_much_demand_reports_the_shortfall(self) -> None:
        (decision,), _ = drive(control(), EVEN, 0, 10, counts(900, 300, 200))
        assert decision.gpus_short > 0
        assert f"{decision.gpus_short} more GPUs are needed" in str(decision.shortfall)

    def test_instances_added_by_others_are_used(self) -> None:
        model = control(max_instances=5)
        (decision,), _ = drive(model, (1, 1, 2), 0, 10, counts(200, 0, 2))
        assert sum(decision.after) == 4

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(st.tuples(*[st.integers(0, 300)] * 3), min_size=1, max_size=5),
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)),
    )
    def test_reallocation_keeps_the_number_of_instances(
        self, mixes: list[tuple[int, int, int]], present: tuple[int, int, int]
    ) -> None:
        model, now, instances = control(present), 0.0, sum(present)
        held: tuple[int, ...] = present
        for mix in mixes:
            critical = counts(*mix, slow=sum(mix), critical=sum(mix))
            decisions, held = drive(model, held, now, 10, critical, instances)
            now += 10
            assert len(decisions) == 1
            assert sum(held) == instances
            assert held[-1] >= 1
            assert min(held) >= 0


class TestScaling:
    def test_latencies_at_the_slo_add_the_longest(self) -> None:
        model = control(period_s=1000, max_instances=5)
        decisions, present = drive(model, EVEN, 0, 20, counts(10, 0, 0, slow=10, critical=1))
        assert [d.action for d in decisions] == ["add", "add"]
        assert present == (1, 1, 3)  # no more than five
        assert "95 % of the SLO" in decisions[0].reason

    def test_a_calm_minute_releases_the_least_busy(self) -> None:
        model = control(period_s=1000, min_instances=2)
        calm = ModelCounts(1.0, (10, 0, 0), (0.5, 0.01, 0.02), 10, 0, 0, 0.05)
        decisions, present = drive(model, EVEN, 0, 180, calm)
        assert [d.action for d in decisions] == ["release"]
        assert present == (1, 0, 1)
        assert "below 50 % of the SLO for 60 s" in decisions[0].reason

    def test_busy_time_is_per_instance_and_includes_the_last_period(self) -> None:
        """The middle runtime was least busy, which the ten seconds of the new period alone do not show."""
        model = control((4, 1, 1), period_s=50, min_instances=1)
        decisions = []
        for second in range(1, 62):
            busy = (2.4, 0.1, 0.5) if second <= 50 else (0.0, 0.0, 0.0)
            model.observe(ModelCounts(1.0, (10, 0, 0), busy, 10, 0, 0, 0.05))
            decisions.append(model.decide(float(second), (4, 1, 1), 6))
        assert [d.after for d in decisions if d is not None and d.action == "release"] == [(4, 0, 1)]

    def test_the_last_instance_of_the_longest_runtime_stays(self) -> None:
        _, present = drive(control((0, 0, 2), period_s=1000, min_instances=1), (0, 0, 2), 0, 400, counts(0, 0, 0))
        assert present == (0, 0, 1)

    def test_equal_bounds_fix_the_number(self) -> None:
        decisions, present = drive(control(period_s=1000), EVEN, 0, 200, counts(10, 0, 0, slow=10, critical=10))
        assert (decisions, present) == ([], EVEN)

    def test_it_is_brought_within_the_bounds(self) -> None:
        assert drive(control(min_instances=5, max_instances=5), EVEN, 0, 5, counts(0, 0, 0))[1] == (1, 1, 3)
        assert drive(control(min_instances=2, max_instances=2), EVEN, 0, 5, counts(0, 0, 0))[1] == (0, 1, 1)
        assert drive(control(max_instances=2), EVEN, 0, 5, counts(0, 0, 0))[1] == (0, 1, 1)
        assert drive(control(min_instances=4), EVEN, 0, 5, counts(0, 0, 0))[1] == (1, 1, 2)

    def test_eight_runtimes_on_two_devices_have_two_instances(self) -> None:
        """One process per runtime, as `tidal build` once published them, whatever the devices."""
        profile = ModelProfile(tuple(range(64, 513, 64)), tuple(0.003 * n for n in range(1, 9)), 0.4)
        model = ModelController(profile, ControllerSettings(period_s=20.0), 2, 0.0)
        short = ModelCounts(1.0, (50.0, *[0.0] * 7), (0.15, *[0.0] * 7), 50)
        decisions, present = drive(model, (1,) * 8, 0, 20, short, 2)
        assert present == (1, 0, 0, 0, 0, 0, 0, 1)
        assert [d.action for d in decisions] == ["release"] * 6 + ["keep"]
        assert decisions[0].reason == "8 instances are above the 2 that devices hold"
        assert [sum(d.after) for d in decisions] == [7, 6, 5, 4, 3, 2, 2]

    def test_devices_that_become_free_are_used(self) -> None:
        model = control()
        decisions, present = drive(model, EVEN, 0, 5, counts(0, 0, 0), devices=5)
        assert present == (1, 1, 3)
        assert decisions[0].reason == "3 instances are below the 5 that devices hold"
        assert drive(model, present, 5, 5, counts(0, 0, 0), devices=2)[1] == (0, 1, 1)

    def test_latencies_during_a_change_are_ignored(self) -> None:
        model = control(period_s=1000, max_instances=5)
        bad = counts(10, 0, 0, slow=10, critical=10)
        drive(model, EVEN, 0, 4, bad)
        model.changed(4.5)
        decisions, _ = drive(model, EVEN, 4.5, 4, counts(10, 0, 0))
        decisions += drive(model, EVEN, 8.5, 3, counts(10, 0, 0))[0]
        assert decisions == []

    def test_the_next_period_allocates_added_instances(self) -> None:
        model = control(period_s=20, max_instances=4)
        decisions, present = drive(model, EVEN, 0, 20, counts(300, 0, 2, slow=302, critical=302))
        assert [d.action for d in decisions] == ["add", "allocate"]
        assert sum(present) == 4
        assert present[0] >= 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"period_s": 0.5}, "--period must be between 1 and 86,400 seconds, got 0.5"),
        ({"period_s": float("nan")}, "--period must be between 1 and 86,400 seconds, got nan"),
        ({"min_gain": 1.0}, "--min-gain must be at least 0 and less than 1, got 1"),
        ({"min_instances": 0}, "--min-instances must be at least 1, got 0"),
        ({"max_instances": -1}, "--max-instances must be at least 1, got -1"),
        ({"min_instances": 5, "max_instances": 3}, "--min-instances 5 exceeds --max-instances 3"),
    ],
)
def test_bad_settings_are_named(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        ControllerSettings(**options)  # type: ignore[arg-type]
    assert str(error.value) == sentence
