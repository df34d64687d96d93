"""What follows from reports of nodes: tables of other nodes, traffic since a reading, whether a node is drained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.made_up import LENGTHS, MODEL, FileServer
from tidal.cluster.agent import NodeAgent
from tidal.cluster.local_cluster import copy_repository, shared_cores
from tidal.controller.counts import ModelCounts
from tidal.controller.observed import ObservedModel, RecentLoad
from tidal.controller.reports import NodeReport, node_tables, since, without_server
from tidal.controller.summary import drain_state
from tidal.errors import InvalidArgument, NotFound


@pytest.fixture
def reports(tmp_path: Path) -> dict[str, NodeReport]:
    return {name: FileServer.create(tmp_path / name, (1, 0, 2)).read() for name in ("a", "b", "c")}


def nodes_of(reports: dict[str, NodeReport], limits: Any = None) -> dict[str, dict[str, dict[int, int]]]:
    tables = node_tables(reports, limits)
    return {name: {other: dict(its.instances) for other, its in tables[name][MODEL].nodes.items()} for name in tables}


def test_every_front_dispatches_to_all_other_nodes(reports: dict[str, NodeReport]) -> None:
    counts = {16: 1, 32: 0, 64: 2}
    assert nodes_of(reports) == {
        "a": {"b": counts, "c": counts},
        "b": {"a": counts, "c": counts},
        "c": {"a": counts, "b": counts},
    }
    node = node_tables(reports)["a"][MODEL].nodes["b"]
    assert (node.grpc, node.http) == ("b:1", None)
    reports["b"] = replace(reports["b"], node_http="b:2")
    assert node_tables(reports)["a"][MODEL].nodes["b"].http == "b:2"


def test_draining_nodes_other_versions_and_absent_servers_are_in_no_table(reports: dict[str, NodeReport]) -> None:
    (model,) = reports["b"].models
    other = replace(reports["b"], models=(replace(model, version=2),))
    for changed in (other, replace(reports["b"], draining=True), NodeReport("b", "away", "ended")):
        assert nodes_of({**reports, "b": changed})["a"].keys() == {"c"}
    # A node of another version dispatches to none, a draining one to the others.
    assert nodes_of({**reports, "b": other})["b"] == {}
    assert nodes_of({**reports, "b": replace(reports["b"], draining=True)})["b"].keys() == {"a", "c"}


def test_limits_lower_the_instances_and_never_raise_them(reports: dict[str, NodeReport]) -> None:
    assert nodes_of(reports, {MODEL: {"b": (0, 3, 1)}})["a"] == {"b": {16: 0, 32: 0, 64: 1}, "c": {16: 1, 32: 0, 64: 2}}


def test_a_server_that_is_being_restarted_keeps_its_models(reports: dict[str, NodeReport]) -> None:
    restarting = NodeReport("b", "restarting", "killed", draining=True, pid=7)
    kept = without_server(reports["b"], restarting)
    assert (kept.models, kept.state, kept.draining, kept.pid) == (reports["b"].models, "restarting", True, 7)
    assert without_server(reports["b"], NodeReport("b", "away")).models == ()
    assert without_server(NodeReport("b", "away"), restarting) == restarting


def counts(*queries: float, seconds: float = 0.0) -> ModelCounts:
    return replace(ModelCounts.none(len(LENGTHS)), queries=queries, busy_s=(1.0, 0.0, queries[0]), seconds=seconds)


class TestTraffic:
    def test_it_is_the_increase_and_at_least_0(self) -> None:
        done = since(counts(5, 1, 9), counts(8, 1, 2))
        assert (done.queries, done.busy_s) == ((3, 0, 0), (0, 0, 3))

    def test_all_entrances_count_and_a_restarted_server_begins_again(self, reports: dict[str, NodeReport]) -> None:
        def read(name: str, process: int, now: ModelCounts) -> None:
            node = replace(reports[name], identity=(1, process))
            observed.observe(node, replace(node.models[0], counts=now))

        observed = ObservedModel(reports["a"].models[0].profile, at=10.0)
        for name in ("a", "b"):
            read(name, 1, counts(100, 100, 100))  # the first reading is only a reference
        read("a", 1, counts(103, 100, 100))
        read("b", 1, counts(100, 104, 100))
        read("b", 2, counts(50, 0, 0))  # a reference too: since when it counts is unknown
        read("b", 2, counts(51, 0, 0))
        observed.passed(12.0, answered=False)  # an outage
        observed.passed(16.0, answered=True)
        total = observed.total()
        assert (total.queries, total.seconds) == ((4, 4, 0), 4.0)
        assert observed.busy_s("a") == (0.0, 0.0, 3.0)
        observed.restart()
        read("a", 1, counts(104, 100, 100))
        assert observed.total().queries == (1, 0, 0)
        assert observed.total().seconds == 0.0
        assert observed.busy_s("a") == (0.0, 0.0, 4.0)  # with those of the period before
        observed.restart()
        assert observed.busy_s("a") == (0.0, 0.0, 1.0)

    def test_recent_load_is_per_second_and_per_instance(self, reports: dict[str, NodeReport]) -> None:
        load, node = RecentLoad(), reports["a"]
        assert load.of("a", node.models[0]) is None
        for now, queries in ((0.0, 10.0), (2.0, 13.0)):
            load.observe(replace(node, models=(replace(node.models[0], counts=counts(queries, 1, 1)),)), now)
        found = load.of("a", node.models[0])
        assert found is not None
        assert (found.queries_per_s, found.busy) == (1.5, 0.5)  # 3 s of 2 s times 3 instances


PLAN = {"draining": ["b"], "state": "done"}


class TestDrained:
    def state(self, reports: dict[str, NodeReport], plan: dict[str, Any]) -> str:
        return drain_state("b", reports, {MODEL: plan})

    def test_it_needs_a_plan_that_is_done_and_no_table_with_the_node(self, reports: dict[str, NodeReport]) -> None:
        (model,) = reports["b"].models
        assert self.state(reports, PLAN) == "no"
        moved = replace(reports["b"], draining=True, models=(replace(model, instances=(0, 0, 1)),))
        assert self.state({**reports, "b": moved}, PLAN) == "drained"
        assert self.state({**reports, "b": moved}, {**PLAN, "state": "changing"}) == "moving"
        assert self.state({**reports, "b": moved}, {"draining": [], "state": "done"}) == "moving"
        assert self.state({**reports, "b": replace(moved, models=(model,))}, PLAN) == "moving"
        used = replace(reports["a"], tables=((MODEL, ("b", "c")),))
        assert self.state({**reports, "a": used, "b": moved}, PLAN) == "moving"


def test_a_broken_memory_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text('{"draining": 3}')
    with pytest.raises(InvalidArgument, match=r"memory\.json: draining: input should be a valid boolean"):
        NodeAgent(FileServer.create(tmp_path / "a"), tmp_path / "memory.json", tmp_path / "servers.json")


def test_cores_are_divided_and_shared_where_there_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 5, 6})
    assert shared_cores(2) == [{0, 2, 6}, {1, 5}]
    assert shared_cores(7) == [{0}, {1}, {2}, {5}, {6}, {0}, {1}]


def test_a_copy_of_a_repository_shares_files_and_has_no_table(tmp_path: Path) -> None:
    model = tmp_path / "models" / "tiny"
    (model / "1").mkdir(parents=True)
    for name in ("cluster.json", "allocation.json", "1/engine"):
        (model / name).write_text(name)
    copy_repository(tmp_path / "models", tmp_path / "copy")
    copied = tmp_path / "copy" / "tiny"
    assert {str(path.relative_to(copied)) for path in copied.rglob("*")} == {"1", "1/engine", "allocation.json"}
    assert (copied / "1" / "engine").samefile(model / "1" / "engine")
    with pytest.raises(NotFound, match="is not a folder"):
        copy_repository(tmp_path / "none", tmp_path / "other")
