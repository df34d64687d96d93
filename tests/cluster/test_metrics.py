"""The metrics of a cluster's controller, against made-up states and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from testing.waiting import until
from tests.cluster.made_up import LENGTHS, MODEL, PROFILE, AgentsInProcess, FileServer
from tests.cluster.pages import Values, of, read, values
from tidal.controller import changes as module
from tidal.controller.controller import ClusterController
from tidal.controller.decisions import PlanSettings, plan_trigger
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.metrics_page import PageAddress
from tidal.controller.reports import NodeReport
from tidal.controller.summary import ClusterState

ANYWHERE = PageAddress("127.0.0.1", 0)
PLAN = {
    "at": "2026-11-27T10:00:00.500+00:00",
    "state": "done",
    "devices": {"a": 3, "b": 3},
    "draining": ["b"],
    "after": {"a": {"16": 2, "32": 0, "64": 1}, "b": {"16": 0, "32": 0, "64": 1}},
    "demand": {"16": 1.5, "32": 0.0, "64": 2.0},
    "instances_short": 2,
    "observed_mean_latency_s": 0.02,
    "predicted_mean_after_s": 0.01,
}


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, FileServer]:
    return {name: FileServer.create(tmp_path / name) for name in ("a", "b")}


class TestState:
    """Families that follow from what the controller knows."""

    @pytest.fixture
    def state(self, nodes: dict[str, FileServer]) -> ClusterState:
        a, b = (each.read() for each in nodes.values())
        (model,) = b.models
        moving = replace(b, draining=True, models=(replace(model, usable=(0, 1, 1), devices=2),))
        known = {"a": a, "b": moving, "c": replace(a, node="c"), "d": NodeReport("d", "away", "ended")}
        known["e"] = replace(NodeReport("e", "restarting"), draining=True)
        silent = {"c": "no answer", "z": "no answer"}
        return ClusterState(known, silent, {MODEL: PLAN}, {}, {"a": 12.5, "c": 3.0}, frozenset({"c"}))

    def page(self, state: ClusterState) -> Values:
        metrics = ClusterMetrics()
        metrics.read_state(lambda: state)
        return values(generate_latest(metrics.registry).decode())

    def test_every_node_is_in_one_state(self, state: ClusterState) -> None:
        found = self.page(state)
        wanted = {"a": "serves", "b": "moving", "c": "silent", "d": "away", "e": "restarting", "z": "silent"}
        for node, its in wanted.items():
            states = of(found, "nodes", node=node)
            assert states.keys() == {"serves", "moving", "drained", "restarting", "away", "silent"}
            assert [name for name, value in states.items() if value] == [its]
            assert sum(states.values()) == 1
        model = replace(state.nodes["b"].models[0], instances=(0, 0, 1))
        drained = replace(state, nodes={**state.nodes, "b": replace(state.nodes["b"], models=(model,))})
        tables = {name: replace(each, tables=()) for name, each in drained.nodes.items()}
        assert of(self.page(replace(drained, nodes=tables)), "nodes", node="b")["drained"] == 1

    def test_reports_and_old_tables_by_node(self, state: ClusterState) -> None:
        found = self.page(state)
        assert of(found, "report_timestamp_seconds") == {"a": 12.5, "c": 3.0}
        assert of(found, "table_outdated") == {"a": 0, "b": 0, "c": 1, "d": 0, "e": 0}

    def test_instances_and_devices_are_summed_over_nodes(self, state: ClusterState) -> None:
        found = self.page(state)
        assert of(found, "instances", model=MODEL) == {"16": 2, "32": 3, "64": 3}
        assert of(found, "devices") == {MODEL: 6}  # without those of b, which drains

    def test_the_last_plan(self, state: ClusterState) -> None:
        found = self.page(state)
        assert of(found, "planned_instances", model=MODEL) == {"16": 2, "32": 0, "64": 2}
        assert of(found, "demand_queries", model=MODEL) == {"16": 1.5, "32": 0, "64": 2}
        assert of(found, "plan_timestamp_seconds") == {MODEL: 1795773600.5}
        assert of(found, "instances_short") == {MODEL: 2}
        assert of(found, "observed_latency_seconds") == {MODEL: 0.02}
        assert of(found, "predicted_latency_seconds") == {MODEL: 0.01}

    def test_a_plan_without_queries_has_no_latency(self, state: ClusterState) -> None:
        plan = {**PLAN, "observed_mean_latency_s": None, "predicted_mean_after_s": None}
        found = self.page(replace(state, plans={MODEL: plan}))
        assert of(found, "observed_latency_seconds") == of(found, "predicted_latency_seconds") == {}

    @pytest.mark.parametrize(("waiting", "blocked"), [({}, 0), ({MODEL: "why"}, 1), ({"": "why"}, 1), ({"x": "y"}, 0)])
    def test_blocked_models(self, state: ClusterState, waiting: dict[str, str], blocked: float) -> None:
        assert of(self.page(replace(state, waiting=waiting)), "planning_blocked") == {MODEL: blocked}

    def test_series_end_with_their_node(self, state: ClusterState) -> None:
        found = self.page(ClusterState({}, {}, {}, {}, {"a": 1.0}, frozenset()))
        assert not of(found, "nodes")
        assert not of(found, "report_timestamp_seconds")


@pytest.mark.parametrize(
    ("changed", "period_over", "trigger"),
    [
        ({}, False, None),
        ({}, True, "period"),
        ({"devices": {"a": 3}}, True, "devices"),
        ({"draining": []}, False, "draining"),
        ({"state": "failed: refused"}, False, "repeat"),
        ({"state": "changing"}, True, "repeat"),
    ],
)
def test_what_requires_a_plan(changed: dict[str, Any], period_over: bool, trigger: str | None) -> None:
    assert plan_trigger({**PLAN, **changed}, {"a": 3, "b": 3}, ["b"], period_over=period_over) == trigger
    assert plan_trigger({}, {"a": 3, "b": 3}, [], period_over=period_over) == "first"


@pytest.mark.parametrize(
    ("devices", "instances", "trigger"),
    [
        ({"a": 3, "b": 3}, 3, None),
        ({"a": 9, "b": 3}, 3, None),  # free devices require nothing
        ({"a": 2, "b": 3}, 3, "devices"),
        ({"a": 3}, 3, "devices"),
        ({"a": 3, "b": 3}, 4, "scaling"),
    ],
)
def test_what_requires_a_plan_with_scaling(devices: dict[str, int], instances: int, trigger: str | None) -> None:
    last = {**PLAN, "instances": 3}
    assert plan_trigger(last, devices, ["b"], period_over=False, instances=instances) == trigger


class TestController:
    """The page of a controller over made-up nodes."""

    @pytest.fixture
    def start(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Callable[[], Values]]]:
        """Start a controller; returns the function that reads its page."""
        monkeypatch.setattr(module, "_TABLE_READ_S", 0.0)
        running: list[ClusterController] = []

        def begin(agents: AgentsInProcess, **settings: Any) -> Callable[[], Values]:
            running.append(ClusterController(agents, PlanSettings(**settings), ANYWHERE, poll_s=0.01, pause_s=0.05))
            address = running[-1].status()["controller"]["metrics"]
            return lambda: read(address)

        yield begin
        for each in running:
            each.close()

    def test_plans_and_changes(self, nodes: dict[str, FileServer], start: Callable[..., Any]) -> None:
        page = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: of(page(), "plans_total", trigger="first", action="keep") == {MODEL: 1})
        # They exist before their first event: an alert on an increase would miss it.
        assert of(page(), "changes_total") == {f"{MODEL} done": 0, f"{MODEL} failed": 0}
        assert of(page(), "planning_seconds_count") == {MODEL: 1}
        nodes["a"].set(devices=1, refuse=True)
        assert until(lambda: of(page(), "changes_total", result="failed")[MODEL] >= 1)
        assert of(page(), "changes_total", result="done") == {MODEL: 0}
        assert of(page(), "plans_total", trigger="devices", action="release") == {MODEL: 1}
        assert until(lambda: of(page(), "planning_blocked") == {MODEL: 1})
        assert of(page(), "moved_instances_total") == {MODEL: 0}
        nodes["a"].set(refuse=False)
        assert until(lambda: of(page(), "changes_total", result="done") == {MODEL: 1})
        assert until(lambda: of(page(), "planning_blocked") == {MODEL: 0})
        found = page()
        assert nodes["a"].facts["instances"] == [0, 0, 1]
        assert of(found, "moved_instances_total") == {MODEL: 2}
        assert of(found, "change_seconds_count") == {MODEL: 1}
        assert of(found, "plans_total", trigger="repeat", action="release")[MODEL] >= 1
        counts = [sum(column) for column in zip(*(each.facts["instances"] for each in nodes.values()), strict=True)]
        wanted = dict(zip(map(str, LENGTHS), counts, strict=True))
        assert of(found, "planned_instances", model=MODEL) == of(found, "instances", model=MODEL) == wanted

    def test_a_plan_by_the_lengths_of_the_queries(
        self, nodes: dict[str, FileServer], start: Callable[..., Any]
    ) -> None:
        page = start(AgentsInProcess(*nodes.values()), period_s=1.0)
        assert until(lambda: of(page(), "plans_total", trigger="first", action="keep") == {MODEL: 1})
        nodes["a"].set(queries=[300.0, 0.0, 1.0], requests=200, latency_s=1.0)
        nodes["b"].set(queries=[300.0, 0.0, 1.0], requests=300, latency_s=4.0)
        assert until(lambda: of(page(), "observed_latency_seconds") == {MODEL: pytest.approx(5.0 / 500)})
        found = page()
        assert of(found, "plans_total", trigger="period", action="allocate") == {MODEL: 1}
        assert of(found, "planned_instances", model=MODEL) == {"16": 4, "32": 0, "64": 2}
        assert of(found, "demand_queries", model=MODEL)["16"] > of(found, "demand_queries", model=MODEL)["64"] > 0
        (predicted,) = of(found, "predicted_latency_seconds").values()
        assert PROFILE.latencies_s[0] < predicted < PROFILE.latencies_s[-1]

    def test_an_interrupted_change_counts(self, nodes: dict[str, FileServer], start: Callable[..., Any]) -> None:
        nodes["a"].set(unfinished=True)
        page = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: of(page(), "changes_total", result="done") == {MODEL: 1})
        assert of(page(), "moved_instances_total") == {MODEL: 0}

    def test_arrivals_go_on_over_a_restart_of_a_server(
        self, nodes: dict[str, FileServer], start: Callable[..., Any]
    ) -> None:
        nodes["a"].set(queries=[1000.0, 0.0, 0.0])
        page = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: of(page(), "plans_total", trigger="first", action="keep") == {MODEL: 1})
        nodes["a"].set(queries=[1030.0, 0.0, 1.0])
        nodes["b"].set(queries=[0.0, 4.0, 2.0])
        assert until(lambda: of(page(), "queries_total") == {f"{MODEL} 16": 30, f"{MODEL} 32": 4, f"{MODEL} 64": 3})
        nodes["a"].set(queries=[2000.0, 0.0, 0.0], process=2)
        nodes["b"].set(queries=[0.0, 5.0, 2.0])
        assert until(lambda: of(page(), "queries_total") == {f"{MODEL} 16": 30, f"{MODEL} 32": 5, f"{MODEL} 64": 3})

    def test_a_silent_node_has_an_old_table_once_the_others_change(
        self, nodes: dict[str, FileServer], start: Callable[..., Any]
    ) -> None:
        agents = AgentsInProcess(*nodes.values())
        page = start(agents)
        assert until(lambda: of(page(), "plans_total", trigger="first", action="keep") == {MODEL: 1})
        assert of(page(), "table_outdated") == {"a": 0, "b": 0}
        agents.silent.add("b")
        assert until(lambda: of(page(), "nodes", state="silent") == {"a": 0, "b": 1})
        assert of(page(), "table_outdated") == {"a": 0, "b": 0}  # it is still the present one
        nodes["a"].set(instances=(2, 0, 1))
        assert until(lambda: of(page(), "table_outdated") == {"a": 0, "b": 1})
        reported = of(page(), "report_timestamp_seconds")
        assert until(lambda: of(page(), "report_timestamp_seconds")["a"] > reported["a"])
        assert of(page(), "report_timestamp_seconds")["b"] == reported["b"]
        agents.silent.clear()
        assert until(lambda: of(page(), "table_outdated") == {"a": 0, "b": 0})

    def test_a_node_that_does_not_accept_its_table_has_an_old_one(
        self, nodes: dict[str, FileServer], start: Callable[..., Any]
    ) -> None:
        nodes["b"].set(refuse_table=True)
        page = start(AgentsInProcess(*nodes.values()))
        assert until(lambda: of(page(), "table_outdated") == {"a": 0, "b": 1})
        nodes["b"].set(refuse_table=False)
        assert until(lambda: of(page(), "table_outdated") == {"a": 0, "b": 0})

    def test_a_node_that_leaves_without_being_drained_is_lost(
        self, nodes: dict[str, FileServer], start: Callable[..., Any], tmp_path: Path
    ) -> None:
        agents = AgentsInProcess(*nodes.values(), FileServer.create(tmp_path / "c"))
        page = start(agents)
        assert until(lambda: of(page(), "nodes", state="serves") == {"a": 1, "b": 1, "c": 1})
        agents.agents["b"].set_draining(True)
        assert until(lambda: of(page(), "nodes", state="drained") == {"a": 0, "b": 1, "c": 0})
        del agents.agents["b"]
        assert until(lambda: of(page(), "nodes", state="serves") == {"a": 1, "c": 1})
        assert of(page(), "lost_nodes_total") == {"": 0}
        del agents.agents["c"]
        assert until(lambda: of(page(), "nodes", state="serves") == {"a": 1})
        assert of(page(), "lost_nodes_total") == {"": 1}
