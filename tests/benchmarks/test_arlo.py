"""The parts of Arlo's comparison that decide what is compared with what."""

from __future__ import annotations

import pytest

from benchmarks.arlo import outcome
from benchmarks.arlo.measure import ArloCell
from benchmarks.arlo.rounds import ArloRun
from benchmarks.arlo.search import TunedBaselines
from benchmarks.arlo.simulate import FirstComeFirstServed, simulate
from benchmarks.arlo.systems import DT, DT_BATCHED, PARTITIONED, POLYMORPHIC, ST, ArloCase, PlannedCase, plan
from benchmarks.report import Report

ROUNDS = 5


def test_full_run_has_3000_requests_a_cell_and_every_claimed_load():
    cells = plan(quick=False)
    assert all(planned.requests * ROUNDS >= 3000 for planned in cells)
    claimed = [
        ArloCase(ST, 40, "poisson"),
        ArloCase(ST, 70, "poisson"),
        *(ArloCase(DT, p, "poisson") for p in (40, 70, 90)),
    ]
    for quick in (False, True):
        planned = {each.case: each.systems for each in plan(quick=quick)}
        assert all(POLYMORPHIC in planned[case] for case in claimed)


def test_simulation_runs_queries_of_each_lane_one_after_the_other():
    one = simulate(FirstComeFirstServed(1), [0.0, 0.5, 0.6], [10, 20, 10], lambda b: b.queries[0].length / 10)
    assert one == pytest.approx([1.0, 2.5, 3.4])
    two = simulate(FirstComeFirstServed(2), [0.0, 0.5, 0.6], [10, 20, 10], lambda b: b.queries[0].length / 10)
    assert sorted(two) == pytest.approx([1.0, 1.4, 2.0])


def cell(*latencies_ms: float, errors: int = 0) -> ArloCell:
    return ArloCell("m", 10.0, list(latencies_ms), {"UNAVAILABLE": errors} if errors else {}, 1.0, 0.5, 0.0, "")


def run_of(case: ArloCase, *rounds: dict[str, ArloCell]) -> ArloRun:
    return ArloRun(TunedBaselines(), {PARTITIONED: 5.0}, [{ST: 10.0, DT: 50.0}], [{str(case): each} for each in rounds])


def test_ratios_are_taken_round_by_round():
    case = ArloCase(DT, 90, "poisson")
    rounds = [
        {DT: cell(10, 30), DT_BATCHED: cell(10, 20), POLYMORPHIC: cell(10, 20)},
        {DT: cell(100, 100), DT_BATCHED: cell(100, 200), POLYMORPHIC: cell(100, 100)},
        {DT: cell(10, 10), DT_BATCHED: cell(20, 20), POLYMORPHIC: cell(5, 5)},
    ]
    run = run_of(case, *rounds)
    assert outcome.ratios(run, case, POLYMORPHIC, DT, outcome.mean_ms) == pytest.approx([0.75, 1.0, 0.5])
    assert outcome.better_dt(run, case) == DT  # medians 20 and 20: the first


def test_a_system_that_cannot_keep_up_is_named_so_and_not_measured(capsys):
    case = ArloCase(DT, 40, "poisson")
    run = run_of(case, {DT: cell(10), POLYMORPHIC: cell(9, errors=1)})
    assert run.saturated(PARTITIONED, case)
    assert not run.saturated(POLYMORPHIC, case)
    report = Report("arlo", quick=True)
    outcome.add_tables(report, run, [PlannedCase(case, (DT, PARTITIONED, POLYMORPHIC), 1)], slo_ms=9.5)
    assert "saturated" in capsys.readouterr().out
    found = report.measured["cells"][str(case)]
    assert PARTITIONED not in found
    assert found[DT]["rounds"][0]["slo_violations"] == 1
    assert found[POLYMORPHIC]["rounds"][0]["slo_violations"] == 1  # a failure violates it too


def test_what_was_measured_survives_the_file(tmp_path):
    case = ArloCase(ST, 40, "poisson")
    run = run_of(case, {ST: cell(1.5, 2.5, errors=2)})
    run.tuned.models[ST] = {"40": "bare"}
    run.save(tmp_path / "kept.json")
    assert ArloRun.read(tmp_path / "kept.json") == run
