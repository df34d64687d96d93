"""Decisions about many nodes: what each is about, and what the report says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import replan
from benchmarks.cluster.plot import plot_replan
from benchmarks.cluster.replan import CASES, Decision, decide_all
from benchmarks.report import Report
from tidal.arlo.scheduling import ClusterNode, ClusterPlan
from tidal.controller.decisions import decide


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[ClusterPlan]:
    """The plans of all decisions."""
    plans: list[ClusterPlan] = []

    def keep(*arguments: Any) -> ClusterPlan:
        plans.append(decide(*arguments))
        return plans[-1]

    monkeypatch.setattr(replan, "decide", keep)
    return plans


def by_name(plan: ClusterPlan) -> dict[str, ClusterNode]:
    return {node.name: node for node in plan.nodes}


def test_a_round_joins_and_loses_a_node_and_carries_out_each_plan(planned: list[ClusterPlan]) -> None:
    decisions = decide_all(6, seed=1)
    assert [each.case for each in decisions] == list(CASES)
    assert [each.nodes for each in decisions] == [5, 6, 5, 5]
    first, joined, lost, longer = planned
    assert by_name(joined).keys() - by_name(first).keys() == {"node005"}
    assert len(by_name(joined).keys() - by_name(lost).keys()) == 1
    for plan, following in ((first, joined), (joined, lost), (lost, longer)):
        after = {node.name: row for node, row in zip(plan.nodes, plan.after, strict=True)}
        assert all(node.instances == after.get(name, node.instances) for name, node in by_name(following).items())
    for plan, decision in zip(planned, decisions, strict=True):
        assert decision.devices == sum(node.devices for node in plan.nodes) == sum(map(sum, plan.after))
        assert all(8 <= node.devices <= 10 for node in plan.nodes)
        assert decision.moves == plan.moves
        assert decision.seconds == decision.plan_s + decision.changes_s + decision.tables_s > 0


def test_plans_follow_the_lengths_that_agents_report(planned: list[ClusterPlan]) -> None:
    decide_all(6, seed=2)
    demands = [plan.demand for plan in planned]
    assert all(all(queries > 0 for queries in demand) for demand in demands)
    shares = [sum(demand[4:]) / sum(demand) for demand in demands]
    assert shares[-1] > 2 * max(shares[:-1])
    counts = [sum(sum(row[4:]) for row in plan.after) for plan in planned]
    assert counts[-1] > max(counts[:-1])
    assert planned[0].moves > planned[1].moves > 0


def test_the_claim_is_the_slowest_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replan, "NODES", 3)

    def made_up(number: int, seed: int) -> list[Decision]:
        return [Decision(case, number, 27, 4, 0.01 * seed, 0.001, 0.1 * at) for at, case in enumerate(CASES)]

    monkeypatch.setattr(replan, "decide_all", made_up)
    report = Report("replan", quick=True)
    replan.measure(report, quick=True)
    (claim,) = report.claims
    assert (claim.name, claim.holds) == ("replan_100_nodes_s", True)
    assert claim.measured == pytest.approx(0.03 + 0.001 + 0.3)
    assert "slowest decision 0.351 s" in claim.note
    assert len(report.measured["replan"]) == 5 * len(CASES)


@pytest.mark.slow
def test_a_quick_run_is_drawn(tmp_path: Path) -> None:
    report = Report("replan", quick=True)
    replan.measure(report, quick=True)
    plot_replan(report.document(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
