"""The parts of OTAS's benchmark that its figures rest on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.otas import simulated_claims
from benchmarks.otas.inputs import ACCURACIES, GAMMAS, PROFILES, TABLE_2, Traces, loading_times, throughput
from benchmarks.otas.live.systems import SYSTEMS
from benchmarks.otas.optimum import Floats, most_allocated, most_earned
from benchmarks.otas.plot import plot
from benchmarks.otas.simulated import (
    COLUMNS,
    INFAAS,
    OTAS,
    PARETO,
    PETS,
    beside_the_paper,
    compare,
    gamma_rows,
    kept,
    rows,
)
from benchmarks.otas.small_cases import allocation_gaps, heavy_profile, policy_gaps
from benchmarks.plots.bars import Bars
from benchmarks.report import Report, machine
from tidal.simulator.otas import QueryTrace


def every_way(deadlines: list[int], earnings: Floats, seconds: Floats) -> float:
    """Every order of batches, every γ of each, whatever is left out."""

    def best(left: frozenset[int], now: float) -> float:
        most = 0.0
        for number in range(1, len(left) + 1):
            for batch in itertools.combinations(sorted(left), number):
                for gamma, takes in enumerate(seconds[:, number]):
                    ends = now + takes
                    gain = sum(earnings[i, gamma] for i in batch if ends <= deadlines[i])
                    if gain:
                        most = max(most, gain + best(left - set(batch), ends))
        return most

    return best(frozenset(range(len(deadlines))), 0.0)


@given(st.lists(st.tuples(st.integers(1, 20), *[st.integers(0, 9)] * 2), min_size=1, max_size=3), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_the_best_of_every_way(queries: list[tuple[int, int, int]], begin: int) -> None:
    deadlines = [query[0] for query in queries]
    earnings = np.array([query[1:] for query in queries], float)
    seconds = np.array([[0, *(begin + each * (size + 1) for size in range(len(queries)))] for each in (2, 5)], float)
    assert most_earned(deadlines, earnings, seconds) == pytest.approx(every_way(deadlines, earnings, seconds))


@given(st.lists(st.tuples(st.integers(1, 20), *[st.integers(0, 9)] * 4), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_best_allocation_is_the_best_of_every_order(batches: list[tuple[int, ...]]) -> None:
    batches.sort()
    earnings, seconds = np.array(batches)[:, 1:3], np.array(batches)[:, 3:] + 1

    def earned(order: tuple[int, ...], choice: tuple[int | None, ...]) -> float:
        now, total = 0, 0
        for number in order:
            if (gamma := choice[number]) is not None:
                now += seconds[number, gamma]
                total += earnings[number, gamma] if now <= batches[number][0] else -100
        return total

    choices = list(itertools.product((None, 0, 1), repeat=len(batches)))
    most = max(earned(order, choice) for order in itertools.permutations(range(len(batches))) for choice in choices)
    assert most_allocated([batch[0] for batch in batches], earnings, seconds) == most


def test_no_policy_earns_more_than_the_optimum() -> None:
    for gaps in (policy_gaps(15), allocation_gaps(15)):
        assert gaps.paper <= gaps.optimum + 1e-6
        assert gaps.pareto <= gaps.optimum + 1e-6
        assert gaps.closed > 0


def test_the_paper_s_figures_are_in_the_profiles() -> None:
    profile = PROFILES["figure 4"]
    assert profile.latency.throughput(0) == pytest.approx(580)
    assert 1 / profile.latency_s(-15, 1) == pytest.approx(100)
    assert 20 / profile.latency_s(-15, 20) == pytest.approx(1000)
    assert throughput(-25) == pytest.approx(1500)
    assert throughput(32) == pytest.approx(220)
    rates = (100, 279, 280, 319, 348, 349, 379, 449, 519, 999, 1001)
    assert [profile.gamma_for_rate(rate) for rate in rates] == [8, 8, 4, 4, 2, 0, 0, -5, -10, -15, -20]
    assert PROFILES["table I"].latency.throughput(8) == pytest.approx(279)
    for by_gamma in ACCURACIES.values():
        accuracies = [by_gamma[gamma] for gamma in GAMMAS]
        assert accuracies == sorted(accuracies)


def test_heavy_queries_take_what_their_images_do() -> None:
    profile = heavy_profile()
    assert profile.latency_s(0, 3) == pytest.approx(0.010 + 120 / 580)
    assert profile.gamma_for_rate(300 / 40) == 4


LOADING_S = {"ViT-Small": 3.0, "ViT-Base": 4.0, "ViT-Large": 5.0}


class _Short:
    """A trace of two seconds."""

    all = {"synthetic": QueryTrace([300.0, 650.0], TABLE_2)}  # noqa: RUF012


def test_a_short_comparison_is_shown(tmp_path: Path) -> None:
    found = compare(_Short(), LOADING_S)  # type: ignore[arg-type]
    assert [each.title for each in found] == [
        "synthetic trace, throughput of figure 4",
        "synthetic trace, throughput of table I",
    ]
    queries = {result.queries for each in found for result in each.results.values()}
    assert len(queries) == 1  # all under the same requests
    for each in found:
        assert all(len(row) == len(COLUMNS) for row in rows(each))
        assert [row[0] for row in gamma_rows(each)] == [OTAS, PARETO]
        assert each.over(PARETO, PARETO) == 1
    assert [each.as_published for each in found] == [False, True]
    assert [row[:2] for row in beside_the_paper(found[1])] == [
        ["OTAS (paper)", "76.4%"],
        ["PetS (0)", "64.6%"],
        ["INFaaS, as published", "44.3%"],
        ["INFaaS, as published, fast loading", "44.3%"],
    ]
    report = Report("otas", True)
    for each in found:
        simulated_claims.add(report, each)
    goals = {claim.name: claim.goal for claim in report.claims}
    assert goals == {
        "sim_utility_vs_pets[synthetic, figure 4]": ">= 1.18",
        "sim_utility_vs_infaas[strong, synthetic, figure 4]": ">= 1.20",
        "pareto_vs_paper_policy[synthetic, figure 4]": "> 1.0",
        "sim_utility_vs_infaas[as published]": ">= 1.70",
        "sim_utility_vs_infaas[as published, fast loading]": ">= 1.70",
        "sim_utility_vs_pets[as published]": ">= 1.18",
        "sim_utility_vs_infaas[strong]": ">= 1.20",
        "pareto_vs_paper_policy[as published]": "> 1.0",
    }
    document = {"machine": machine(), "measured": {each.title: kept(each) for each in found}}
    plot(document, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_rates_of_the_synthetic_trace_change_every_second() -> None:
    trace = Traces(None, quick=True).all["synthetic"]
    assert (len(trace.rates), len(set(trace.rates))) == (60, 60)
    assert np.mean(trace.rates) == pytest.approx(350)


def test_loading_times_are_medians_of_the_live_loads() -> None:
    def outcome(*loads: tuple[str, float]) -> dict[str, Any]:
        return {"INFaaS": {"loadings": list(loads)}}

    found = {"1.0": outcome(("size_small", 1.0), ("size_base", 9.0)), "1.2": outcome(("size_small", 3.0))}
    live = {"rounds": [{"outcomes": found}, {"outcomes": {"1.0": outcome(("size_small", 5.0))}}]}
    assert loading_times(live) == {"ViT-Small": 3.0, "ViT-Base": 9.0, "ViT-Large": 9.0}
    committed = loading_times(None)
    assert committed == loading_times({"rounds": [{"outcomes": {"1.0": outcome()}}]})
    assert all(1 < seconds < 60 for seconds in committed.values())


def test_the_figure_shows_shares_of_the_utility_and_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    panels: list[Bars] = []
    monkeypatch.setattr("benchmarks.otas.plot.save", lambda drawn, *rest, **options: panels.extend(drawn))

    def outcome(utility: float) -> dict[str, Any]:
        return {"offered": 10.0, "utility": utility, "gammas": {"2": 3, "-5": 1}}

    rounds = [{"outcomes": {"1.0": {name: outcome(utility) for name in SYSTEMS}}} for utility in (4.0, 6.0)]
    trace = {name: outcome(7.0) for name in (PARETO, OTAS, PETS, "ToMe (-15)", "VPT (2)", INFAAS)}
    measured = {"live": {"rounds": rounds}, "real trace, throughput of table I": trace}
    plot({"machine": machine(), "measured": measured}, Path("plot.png"))
    live, gammas, simulated = panels
    assert (live.groups, live.systems["Tidal (pareto)"]) == (["load 1"], [[40, 60]])
    assert len(live.systems) == len(SYSTEMS)
    assert (gammas.groups, gammas.systems["published policy"]) == (["γ -5", "γ 2"], [[25, 25], [75, 75]])
    assert (simulated.groups, simulated.systems["Tidal (pareto)"]) == (["real trace,\ntable I"], [[70]])
