"""Figures, goals and tables of OTAS's live benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.otas.live import claims, figures, tables
from benchmarks.otas.live.bounds import Bounds
from benchmarks.otas.live.rounds import OtasRun
from benchmarks.otas.live.systems import INFAAS, PARETO, PETS, TOME, VPT
from benchmarks.report import Report
from tests.benchmarks.otas_runs import a_run, an_outcome


def bounds(*most: float) -> list[Bounds]:
    return [Bounds(each, each + 1, 1.1) for each in most]


def test_a_run_is_what_was_kept_of_it(tmp_path: Path) -> None:
    run = a_run()
    run.save(tmp_path / "kept.json")
    found = OtasRun.read(tmp_path / "kept.json")
    assert found == run
    assert (found.gamma(TOME, 1.0), found.gamma(VPT, 1.0), found.gamma(PETS, 1.0)) == (-4, 2, 0)


def test_goals_are_the_published_gains_where_the_oracle_leaves_room() -> None:
    report = Report("otas", True)
    # The oracle earns 10 in the first round: twice what γ 0 does, and 10 / 5.5 times the best fixed γ.
    claims.add(report, a_run(), {1.0: bounds(10.0, 20.0, 30.0)})
    assert {claim.name: (claim.goal, round(claim.measured, 3)) for claim in report.claims} == {
        "live_utility_vs_pets[1.0]": (">= 1.1800", 1.2),
        "live_utility_vs_infaas[1.0]": (">= 1.0", 3.0),
        "live_utility_vs_infaas[1.0, resident]": (">= 1.0", 1.017),
        "live_utility_vs_best_fixed[1.0]": (">= 1.0500", 1.091),
    }
    assert report.claims[-1].note == "VPT, γ 2; oracle 1.818; 1.09 to 1.09; paper policy 1.000"


def test_goals_are_a_share_of_the_oracle_s_ratio_where_it_is_smaller() -> None:
    pets, fixed = claims.goals_at(a_run(), 1.0, bounds(5.8, 11.6, 17.4))
    assert (pets.system, fixed.system) == (PETS, VPT)
    assert (pets.oracle, pets.least) == (pytest.approx(1.16), pytest.approx(0.95 * 1.16))
    assert (fixed.oracle, fixed.least) == (pytest.approx(5.8 / 5.5), pytest.approx(0.97 * 5.8 / 5.5))


def test_the_best_fixed_gamma_may_be_0() -> None:
    run = a_run()
    for each in run.rounds:
        each.outcomes["1.0"][PETS] = an_outcome(100.0)
    assert [goal.system for goal in claims.goals_at(run, 1.0, bounds(200.0, 200.0, 200.0))] == [PETS, PETS]


def test_ratios_are_of_one_round() -> None:
    run = a_run()
    run.rounds[0].outcomes["1.0"][PETS] = an_outcome(100.0)
    assert figures.ratio(run, 1.0, PARETO, PETS) == pytest.approx(1.2)
    assert figures.oracle_over(run, 1.0, [100.0, 30.0, 60.0], PETS) == pytest.approx(3.0)
    assert figures.median(figures.of_system(run, 1.0, PARETO), lambda each: each.utility) == 12.0
    run.rounds[0].outcomes["1.0"][INFAAS] = replace(an_outcome(1.0), mean_batch=None)
    assert figures.median(figures.of_system(run, 1.0, INFAAS)[:1], lambda each: each.mean_batch) is None


def test_the_spread_is_over_the_intervals_of_all_rounds() -> None:
    run = a_run()
    run.rounds[1].outcomes["1.0"][PETS] = an_outcome(10.0, first_half=0.8)
    assert figures.spread(run, 1.0, PARETO, PETS) == (pytest.approx(6 / 8), pytest.approx(6 / 2))
    run.rounds[1].outcomes["1.0"][PETS] = an_outcome(10.0, first_half=0)
    assert figures.spread(run, 1.0, PARETO, PETS)[1] == float("inf")


def test_tables_show_the_oracle_beside_each_system() -> None:
    report = Report("otas", True)
    tables.add_scale(report, a_run(), 1.0, bounds(10.0, 20.0, 30.0))
    over = report.tables[1]
    rows = list(zip(*(column.cells for column in over.columns), strict=True))
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["PetS (0)"] == ("10.0", "1.200", "1.200 to 1.200", "2.000", ">= 1.180")
    assert by_name["VPT (2)"][-1] == ">= 1.050"
    assert by_name["INFaaS"][-1] == "-"
    assert by_name["oracle: knows all arrivals"][:2] == ("20.0", "0.600")
    assert "OTAS (pareto)" not in by_name
