"""The controller's decisions about the models of one node, on a clock of its own: what `tidal controller` does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.waiting import until
from tidal.controller.agents import LocalAgents
from tidal.controller.controller import ClusterController
from tidal.controller.counts import ModelCounts
from tidal.controller.decisions import PlanSettings, plan_settings
from tidal.controller.event_log import EventLog
from tidal.controller.host_journal import HostJournal, Outcome
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.reports import ModelProfile, ModelReport, NodeReport
from tidal.controller.scaling import ScalingSettings
from tidal.errors import InvalidArgument, Unavailable

PROFILE = ModelProfile((16, 32, 64), (0.005, 0.01, 0.02), 0.4)
EVEN = (1, 1, 1)


def counts(*queries: float, requests: int | None = None, slow: int = 0, critical: int = 0) -> ModelCounts:
    count = round(sum(queries)) if requests is None else requests
    return ModelCounts(0.0, queries, (0.1, 0.1, 0.1), count, slow, critical, 0.01 * count)


IDLE = counts(0, 0, 0)


class Host:
    """A made-up node with one model, the controller of it, and the events that this writes.

    Args:
        present: Instances by runtime.
        devices: Instances that its devices hold.
        dry_run: Whether its metrics are those of a dry run.
        bounds: Fields of `ScalingSettings`.
    """

    def __init__(
        self,
        present: tuple[int, ...] = EVEN,
        devices: int | None = None,
        *,
        profile: ModelProfile = PROFILE,
        period_s: float = 10.0,
        min_gain: float = 0.05,
        once: bool = False,
        dry_run: bool = False,
        **bounds: int,
    ) -> None:
        self.present, self.devices, self.state = present, sum(present) if devices is None else devices, "serves"
        self.now, self.error, self.process = 0.0, "", 1
        self.lines: list[dict[str, Any]] = []
        self.metrics, self.outcome, self.steps = ClusterMetrics(dry_run=dry_run), Outcome(), [present]
        self._profile, self._counts = profile, ModelCounts.none(len(present))
        log = EventLog(lambda line: self.lines.append(json.loads(line)), as_json=True)
        scaling = ScalingSettings(bounds.get("min_instances"), bounds.get("max_instances"), only_node=True)
        self.controller = ClusterController(
            LocalAgents({"": self}),
            PlanSettings(period_s, min_gain, scaling),
            clock=lambda: self.now,
            poll_s=3600.0,  # passes are those of `drive`
            journal=HostJournal(log, (), self.outcome, dry_run=dry_run, once=once),
            metrics=self.metrics,
        )
        assert until(lambda: self.controller._passes == 1)

    def report(self) -> NodeReport:
        if self.state != "serves":
            return NodeReport("", "away", "made up")
        model = ModelReport("m", 1, self._profile, self.devices, self.present, self.present, False, self._counts)
        return NodeReport("", "serves", http="127.0.0.1:1", identity=(1, self.process), models=(model,))

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        if self.error:
            raise Unavailable(self.error)
        self.present = tuple(instances.values())
        self.steps.append(self.present)

    def write_tables(self, tables: Mapping[str, Any], servers: Sequence[str]) -> None:
        """An only node has no table."""

    def plans(self) -> dict[str, Any]:
        return {}

    def remember_plan(self, model: str, plan: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    def drive(self, seconds: int, each: ModelCounts) -> list[dict[str, Any]]:
        """Let traffic come for some seconds, with a pass in each; return the decisions."""
        before = len(self.decisions)
        for _ in range(seconds):
            self.now += 1.0
            self._counts += each
            self.controller._pass()
            self.controller._journal.passed(self.controller._waiting)
        return self.decisions[before:]

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return self.of("decision")

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"tidal_cluster_{name}", labels)


@contextmanager
def host(*arguments: Any, **options: Any) -> Iterator[Host]:
    running = Host(*arguments, **options)
    try:
        yield running
    finally:
        running.controller.close()
        assert running.controller.ended(10.0)


def actions(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    return [each["action"] for each in decisions]


class TestPeriods:
    def test_one_decision_per_period_from_its_counts(self) -> None:
        with host() as one:
            (first,) = one.drive(10, counts(200, 0, 2))
            assert one.present == (2, 0, 1)
            (second,) = one.drive(10, counts(0, 0, 40))
        assert actions([first, second]) == ["allocate", "allocate"]
        assert first["observed"]["seconds"] == 10
        assert first["observed"]["queries"] == {"16": 2000, "32": 0, "64": 20}
        assert list(first["observed"]["demand"].values()) == pytest.approx([80, 0, 0.8])  # in 0.4 s
        assert second["before"] == first["after"] == {"16": 2, "32": 0, "64": 1}
        assert second["after"] == {"16": 0, "32": 0, "64": 3}
        assert second["predicted_mean_best_s"] < second["predicted_mean_before_s"]
        assert one.metric("plans_total", model="m", trigger="first", action="keep") == 1
        assert one.metric("plans_total", model="m", trigger="period", action="allocate") == 2
        assert one.metric("instances", model="m", runtime="64") == 3
        assert one.metric("demand_queries", model="m", runtime="64") == pytest.approx(16)
        assert one.metric("moved_instances_total", model="m") == 2 + 4  # ended and started ones
        assert one.metric("changes_total", model="m", result="done") == 2
        assert one.metric("change_seconds_count", model="m") == 2
        assert one.metric("predicted_latency_seconds", model="m") == second["predicted_mean_best_s"]
        assert one.metric("observed_latency_seconds", model="m") == pytest.approx(0.01)

    def test_without_queries_it_keeps_the_allocation(self) -> None:
        with host() as one:
            decisions = one.drive(30, IDLE)
            assert one.present == EVEN
        assert actions(decisions) == ["keep"] * 3
        assert {each["reason"] for each in decisions} == {"there were no queries"}
        assert one.of("changed") == []
        assert one.metric("plans_total", model="m", trigger="period", action="keep") == 3
        assert one.metric("observed_latency_seconds", model="m") is None

    def test_an_outage_is_no_observation(self) -> None:
        with host() as one:
            one.drive(5, counts(10, 0, 0))
            one.state = "away"
            assert one.drive(60, IDLE) == []
            assert one.metric("nodes", node="", state="away") == 1
            one.state, one.process = "serves", 2
            assert one.drive(5, IDLE) == []
            (decision,) = one.drive(1, IDLE)
        assert decision["observed"]["seconds"] == 10  # the first second after it is not known
        assert [line["event"] for line in one.lines][:3] == ["connected", "away", "connected"]
        assert one.metric("nodes", node="", state="serves") == 1
        assert one.metric("nodes", node="", state="away") == 0

    def test_a_small_gain_changes_nothing(self) -> None:
        with host(min_gain=0.9) as one:
            (decision,) = one.drive(10, counts(100, 0, 2))
        assert decision["action"] == "keep"
        assert decision["reason"].endswith("% faster, below the minimum gain of 90 %")
        assert "at best with 16=2 32=0 64=1" in decision["message"]
        assert one.metric("predicted_latency_seconds", model="m") == decision["predicted_mean_before_s"]
        assert one.metric("planned_instances", model="m", runtime="16") == 1

    def test_the_best_allocation_stays(self) -> None:
        with host((2, 0, 1)) as one:
            (decision,) = one.drive(10, counts(200, 0, 2))
        assert (decision["action"], decision["reason"]) == ("keep", "the current allocation is the best one")

    def test_too_much_demand_reports_the_shortfall(self) -> None:
        with host() as one:
            (decision,) = one.drive(10, counts(900, 300, 200))
        short = one.metric("instances_short", model="m")
        assert short is not None
        assert short > 0
        assert f"{short:.0f} more GPUs are needed" in decision["shortfall"]

    def test_instances_added_by_others_are_used(self) -> None:
        with host(max_instances=5) as one:
            one.present = (1, 1, 2)
            assert one.drive(9, counts(200, 0, 2)) == []
            (decision,) = one.drive(1, counts(200, 0, 2))
            assert sum(one.present) == 4
        assert (decision["action"], decision["before"]) == ("allocate", {"16": 1, "32": 1, "64": 2})

    def test_a_failed_change_is_counted_logged_once_and_tried_again(self) -> None:
        with host() as one:
            one.error = "made-up failure"
            one.drive(29, counts(200, 0, 2))
            assert one.present == EVEN
            (failed,) = one.of("failed")
            assert failed["message"] == "unchanged for now: allocate was not completed: made-up failure"
            assert actions(one.decisions) == ["allocate"] * 2  # after 10 s, and once more 10 s later
            assert one.metric("changes_total", model="m", result="failed") == 2
            one.error = ""
            one.drive(10, counts(200, 0, 2))
            assert one.present == (2, 0, 1)
        assert len(one.of("changed")) == 1

    def test_changes_of_a_dry_run_are_not_counted(self) -> None:
        with host(dry_run=True) as one:
            one.drive(10, counts(200, 0, 2))
        assert one.metric("plans_total", model="m", trigger="period", action="allocate") == 1
        assert one.metric("planned_instances", model="m", runtime="16") == 2
        for name in ("change_seconds_count", "moved_instances_total"):
            assert one.metric(name, model="m") == 0
        assert one.metric("changes_total", model="m", result="done") == 0

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(st.tuples(*[st.integers(0, 300)] * 3), min_size=1, max_size=5),
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)),
    )
    def test_reallocation_keeps_the_number_of_instances(
        self, mixes: list[tuple[int, int, int]], present: tuple[int, int, int]
    ) -> None:
        with host(present) as one:
            for mix in mixes:
                assert len(one.drive(10, counts(*mix, slow=sum(mix), critical=sum(mix)))) == 1
                assert sum(one.present) == sum(present)
                assert one.present[-1] >= 1
                assert min(one.present) >= 0


class TestScaling:
    def test_latencies_at_the_slo_add_the_longest(self) -> None:
        with host(period_s=1000, max_instances=5) as one:
            decisions = one.drive(20, counts(10, 0, 0, slow=10, critical=1))
            assert one.present == (1, 1, 3)  # no more than five
        assert actions(decisions) == ["add", "add"]
        assert "95 % of the SLO" in decisions[0]["reason"]

    def test_a_calm_minute_releases_the_least_busy(self) -> None:
        with host(period_s=1000, min_instances=2) as one:
            decisions = one.drive(180, replace(counts(10, 0, 0), busy_s=(0.5, 0.01, 0.02)))
            assert one.present == (1, 0, 1)
        assert actions(decisions) == ["release"]
        assert "below 50 % of the SLO for 60 s" in decisions[0]["reason"]

    def test_busy_time_is_per_instance_and_includes_the_last_period(self) -> None:
        """The middle runtime was least busy, which the ten seconds of the new period alone do not show."""
        with host((4, 1, 1), period_s=50, min_instances=1, min_gain=0.9) as one:
            one.drive(50, replace(counts(10, 0, 0), busy_s=(2.4, 0.1, 0.5)))
            decisions = one.drive(11, replace(counts(10, 0, 0), busy_s=(0.0, 0.0, 0.0)))
        assert [each["after"] for each in decisions] == [{"16": 4, "32": 0, "64": 1}]

    def test_the_last_instance_of_the_longest_runtime_stays(self) -> None:
        with host((0, 0, 2), period_s=1000, min_instances=1) as one:
            one.drive(400, IDLE)
            assert one.present == (0, 0, 1)

    def test_equal_bounds_fix_the_number(self) -> None:
        with host(period_s=1000) as one:
            assert one.drive(200, counts(10, 0, 0, slow=10, critical=10)) == []
            assert one.present == EVEN

    @pytest.mark.parametrize(
        ("bounds", "after", "reason"),
        [
            ({"min_instances": 5, "max_instances": 5}, (1, 1, 3), "3 instances are below the minimum of 5"),
            ({"min_instances": 2, "max_instances": 2}, (0, 1, 1), "3 instances are above the maximum of 2"),
            ({"max_instances": 2}, (0, 1, 1), "3 instances are above the maximum of 2"),
            ({"min_instances": 4}, (1, 1, 2), "3 instances are below the minimum of 4"),
        ],
    )
    def test_it_is_brought_within_the_bounds(self, bounds: dict[str, int], after: tuple[int, ...], reason: str) -> None:
        """Whatever the three devices hold, and at once."""
        with host(**bounds) as one:
            one.drive(3, IDLE)
            assert one.present == after
        assert [each["reason"] for each in one.decisions] == [reason]

    def test_eight_runtimes_on_two_devices_have_two_instances(self) -> None:
        """One process per runtime, as `tidal build` once published them, whatever the devices: they end one by one."""
        profile = ModelProfile(tuple(range(64, 513, 64)), tuple(0.003 * n for n in range(1, 9)), 0.4)
        short = ModelCounts(0.0, (50.0, *[0.0] * 7), (0.15, *[0.0] * 7), 50)
        with host((1,) * 8, 2, profile=profile, period_s=20) as one:
            assert one.present == (*[0] * 6, 1, 1)
            assert [sum(step) for step in one.steps] == [8, 7, 6, 5, 4, 3, 2]
            one.drive(20, short)
            assert one.present == (1, *[0] * 6, 1)
        assert actions(one.decisions) == ["release", "allocate"]
        assert one.decisions[0]["reason"] == "8 instances are above the 2 that devices hold"

    def test_devices_that_become_free_are_used(self) -> None:
        with host() as one:
            one.devices = 5
            one.drive(1, IDLE)
            assert one.present == (1, 1, 3)
            one.devices = 2
            one.drive(1, IDLE)
            assert one.present == (0, 1, 1)
        assert [each["reason"] for each in one.decisions] == [
            "3 instances are below the 5 that devices hold",
            "5 instances are above the 2 that devices hold",
        ]

    def test_latencies_before_a_change_do_not_count(self) -> None:
        with host(period_s=3, max_instances=5) as one:
            assert actions(one.drive(3, counts(200, 0, 2, slow=202, critical=202))) == ["allocate"]
            assert actions(one.drive(8, counts(200, 0, 2))) == ["keep"] * 2

    def test_the_next_period_allocates_added_instances(self) -> None:
        with host(period_s=20, max_instances=4) as one:
            decisions = one.drive(20, counts(300, 0, 2, slow=302, critical=302))
            assert sum(one.present) == 4
            assert one.present[0] >= 2
        assert actions(decisions) == ["add", "allocate"]
        assert decisions[1]["observed"]["seconds"] == 20  # the period goes on over an added instance


class TestOnce:
    def test_it_ends_with_the_decision_of_the_first_period(self) -> None:
        with host(min_instances=4, once=True) as one:
            one.drive(9, IDLE)
            assert actions(one.decisions) == ["add"]
            assert not one.outcome.over.is_set()
            one.drive(5, IDLE)
        assert actions(one.decisions) == ["add", "keep"]
        assert one.outcome.over.is_set()
        assert one.outcome.error is None

    def test_it_ends_with_an_error(self) -> None:
        with host(once=True) as one:
            one.error = "made-up failure"
            one.drive(10, counts(200, 0, 2))
        assert str(one.outcome.error) == "allocate was not completed: made-up failure"
        assert one.of("failed") == []

    def test_a_lost_server_ends_it(self) -> None:
        with host(once=True) as one:
            one.state = "away"
            one.drive(1, IDLE)
        assert str(one.outcome.error) == "made up"


def test_a_request_to_stop_ends_a_change_between_two_steps() -> None:
    with host((1, 1, 4)) as one:
        allocate = one.allocate

        def stop(model: str, instances: Mapping[int, int]) -> None:
            allocate(model, instances)
            one.controller.close()

        one.allocate, one.devices = stop, 3  # type: ignore[method-assign]
        one.drive(1, IDLE)
        assert one.present == (1, 1, 3)
    (stopped,) = one.of("stopped")
    assert stopped["message"] == "stopped at 16=1 32=1 64=3"
    assert one.of("changed") == one.of("failed") == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"period_s": 0.5}, "--period must be between 1 and 86,400 seconds, got 0.5"),
        ({"period_s": float("nan")}, "--period must be between 1 and 86,400 seconds, got nan"),
        ({"min_gain": 1.0}, "--min-gain must be at least 0 and less than 1, got 1"),
    ],
)
def test_bad_settings_are_named(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        plan_settings(**{"period_s": 10.0, "min_gain": 0.05, **options}, scaling=None)
    assert str(error.value) == sentence
