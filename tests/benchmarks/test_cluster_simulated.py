"""The calibration and the errors of the simulator in the cluster benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.arlo.measure import ArloCell
from benchmarks.cluster.simulated import figures, served
from benchmarks.cluster.simulated.calibration import Calibration, Observed, others_busy
from benchmarks.cluster.simulated.fidelity import ComparedTrace, FidelityRound, FidelitySize, lone_times, median_error
from benchmarks.cluster.simulated.plot import DRAWN, plot, series
from benchmarks.cluster.simulated.reallocation import ReallocationResult
from benchmarks.report import Report, machine
from tidal.simulator.arlo.result import ClusterResult, ClusterSample
from tidal.simulator.traces import RecordedRequests

# Alone 10 and 40 ms, and 2 ms around it; beside the other instance, half the time busy, 15 and 60 ms.
LONE = Observed(seconds=10.0, busy_s=(0.1, 0.0, 0.4), queries=(10.0, 0.0, 10.0), latency_s=0.027)
LOADED = Observed(seconds=10.0, busy_s=(5.0, 0.0, 5.0), queries=(5000 / 15, 0.0, 5000 / 60), latency_s=0.1)
CALIBRATION = Calibration((64, 128, 256), (0.013, 0.02, 0.05), (1, 0, 1), 1.0, LONE, LOADED, loaded_overhead_s=0.002)


def trace(*queries: tuple[float, int]) -> RecordedRequests:
    times, lengths = zip(*queries, strict=True)
    return RecordedRequests(np.array(times), np.array(lengths), 256)


def test_others_are_all_instances_but_one() -> None:
    assert others_busy((4.0, 0.0, 1.0), (1, 0, 1), 10.0) == pytest.approx((0.1, 0.5, 0.4))
    assert others_busy((6.0, 3.0), (2, 1), 10.0) == pytest.approx((0.3, 0.3))
    assert others_busy((6.0,), (1,), 10.0) == (0.0,)
    assert others_busy((25.0, 0.0), (1, 1), 10.0)[1] == 1.0


def test_what_a_lone_query_takes_beside_its_execution_is_overhead() -> None:
    assert CALIBRATION.overhead_s == pytest.approx(0.002)


def test_service_times_grow_with_how_busy_the_others_are() -> None:
    assert CALIBRATION.service_s((0.0, 0.0, 0.0)) == pytest.approx((0.010, 0.02, 0.040))
    assert CALIBRATION.service_s((0.5, 0.0, 0.25)) == pytest.approx((0.015, 0.02, 0.050))


def test_noise_makes_nothing_quicker_than_what_was_measured() -> None:
    quicker = Observed(10.0, (5.0, 0.0, 5.0), (5000 / 9, 0.0, 5000 / 60), 0.1)
    calibration = Calibration((64, 128, 256), (0.013, 0.02, 0.05), (1, 0, 1), 1.0, LONE, quicker)
    assert calibration.service_s((1.0, 0.0, 0.0))[0] == pytest.approx(0.009)


def test_runs_are_pooled_by_their_queries() -> None:
    both = LONE + Observed(30.0, (0.5, 0.0, 0.1), (38.0, 0.0, 2.0), 0.012)
    assert both == Observed(40.0, pytest.approx((0.6, 0.0, 0.5)), (48.0, 0.0, 12.0), pytest.approx(0.017))


def test_a_runtime_that_was_not_calibrated_takes_what_the_profile_says() -> None:
    unused = Observed(10.0, (0.1, 0.0, 0.0), (10.0, 0.0, 0.0), 0.012)
    unseen = Calibration((64, 128, 256), (0.013, 0.02, 0.05), (1, 0, 1), 1.0, unused, LOADED)
    assert unseen.service_s((0.5, 0.0, 0.5))[2] == 0.05


def test_lone_queries_are_simulated_as_they_were_measured() -> None:
    result = CALIBRATION.by_calibration(trace((0.0, 60), (50.0, 200)))
    assert result.latencies_s == pytest.approx([0.012, 0.042], abs=1e-4)


def test_overhead_under_load_is_what_the_loaded_run_took_beside_its_simulation() -> None:
    calibrated = CALIBRATION.calibrated([trace((0.0, 60)), trace((5.0, 200))])  # 15 and 60 ms of 100 on the mean
    assert calibrated.loaded_overhead_s == pytest.approx(0.0625)
    busy = calibrated.by_calibration(trace(*((i * 0.04, 200) for i in range(25))))  # as busy as the loaded run
    assert busy.latencies_s[0] - 0.04 == pytest.approx(0.0625)


def test_by_profile_is_the_profile_and_the_overhead() -> None:
    result = CALIBRATION.by_profile(trace((0.0, 60), (0.001, 60), (50.0, 200)))
    assert result.latencies_s == pytest.approx([0.015, 0.027, 0.052])


def test_service_times_fit_the_load_that_they_make() -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.02, 3000))
    result = CALIBRATION.by_calibration(trace(*((t, 60 if i % 4 else 200) for i, t in enumerate(times.tolist()))))
    counts = (2250, 0, 750)
    others = others_busy(result.busy_s, CALIBRATION.instances, result.seconds)
    wanted = CALIBRATION.service_s(others)
    assert result.demotions == 0
    assert [result.busy_s[i] / counts[i] for i in (0, 2)] == pytest.approx([wanted[0], wanted[2]], rel=1e-3)
    assert wanted[0] > 0.012


def test_lone_queries_come_when_the_one_before_is_answered() -> None:
    times = lone_times([60, 100, 200, 60], (64, 128, 256), (0.01, 0.02, 0.04), (1, 0, 1), 10.0)
    assert times == pytest.approx([0.0, 0.04, 0.14, 0.24])  # 100 tokens go to the next runtime that is there
    assert len(lone_times([60] * 9, (64,), (0.01,), (1,), 0.1)) == 3


def round_of(*means_ms: tuple[int, float]) -> FidelityRound:
    """A round in which each load's queries took this long, and whose simulation says 12 ms (by the profile 15)."""
    requests = trace((0.0, 60))
    simulated, by_profile = CALIBRATION.by_calibration(requests), CALIBRATION.by_profile(requests)
    compared = tuple(
        ComparedTrace(percent, 9.0, ArloCell("m", 9.0, [ms], {}, 1.0, 0.5, 0.0, ""), simulated, by_profile)
        for percent, ms in means_ms
    )
    return FidelityRound(20.0, CALIBRATION, compared)


def test_errors_count_alike_above_and_below(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [round_of((40, 10.0), (70, 12.0)), round_of((40, 15.0), (70, 12.0)), round_of((40, 12.0), (70, 48.0))]
    assert median_error(rounds, 40) == pytest.approx(0.2)  # +20 %, -20 % and 0: not 0
    assert median_error(rounds, 70) == pytest.approx(0.0)
    assert median_error(rounds, 40, by_profile=True) == pytest.approx(0.25)
    report = Report("simulated", quick=True)
    served.add_fidelity(report, rounds, FidelitySize())
    claims = {claim.name: claim for claim in report.claims}
    assert not claims["fidelity_mean_error[40]"].holds
    assert claims["fidelity_mean_error[70]"].holds
    printed = capsys.readouterr().out
    assert "1 of 64, 1 of 256" in printed
    assert "+20.0% (+50.0%)" in printed


def test_the_report_of_reallocations_names_failures_and_lacking_changes(tmp_path: Path) -> None:
    report = Report("simulated", quick=True)
    steps = ({"64": 1, "256": 1}, {"64": 0, "256": 2})
    result = ReallocationResult(1000, 2, 1, 60.0, (1.5,), steps, 80.0, "Unavailable: gone")
    served.add_reallocation(report, result, changes=3)
    assert {claim.name: claim.holds for claim in report.claims} == {
        "reallocations_under_traffic": False,
        "failed_during_reallocation": False,
    }
    report.finish(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["measured"]["reallocation"]["failed"] == 2
    assert "2, first: Unavailable: gone" in (tmp_path / "report.txt").read_text()


def result_of(*samples: tuple[float, int, tuple[int, int]]) -> ClusterResult:
    """A result with latencies from 1 to 3 ms and these times, GPUs and GPUs by runtime."""
    moments = tuple(ClusterSample(at, gpus, instances, 0) for at, gpus, instances in samples)
    return ClusterResult("m", (64, 128), 3, 3.0, np.array([0.003, 0.001, 0.002]), moments, (0.1, 0.1), 0, 0, 0)


def test_the_figure_has_latencies_and_what_changes_over_time() -> None:
    kept = series(
        {
            "fixed": result_of((1, 4, (2, 2)), (2, 4, (2, 2))),
            "arlo": result_of((1, 4, (2, 2)), (2, 4, (1, 3))),
            "scaled": result_of((1, 4, (2, 2)), (2, 5, (2, 3))),
        }
    )
    assert len(kept["fixed"]["latency_ms"]) == 201
    assert [kept["fixed"]["latency_ms"][place] for place in (0, 50, 100, 200)] == [1, 1.5, 2, 3]
    assert set(kept["fixed"]) == {"latency_ms"}
    assert (kept["arlo"]["at_s"], kept["arlo"]["instances"]) == ([1, 2], {"64": [2, 1], "128": [2, 3]})
    assert (kept["scaled"]["gpus"], "instances" in kept["scaled"]) == ([4, 5], False)


def test_the_figure_keeps_some_hundred_moments_of_a_long_run() -> None:
    long = result_of(*((float(at), 4 + at % 2, (2, 2)) for at in range(1, 3603)))
    assert 200 < len(series({"arlo": long})["arlo"]["gpus"]) <= 300


def test_a_figure_is_drawn_where_a_short_run_changed_no_instances(tmp_path: Path) -> None:
    latencies = {"latency_ms": np.linspace(1, 9, 201).tolist()}
    kept = {title: {"arlo": dict(latencies)} for title in DRAWN}
    kept[figures.FIGURE_8.title]["arlo"] |= {"at_s": [0.0, 60.0], "gpus": [5, 6]}
    measured = {"series": kept} | {title: {"arlo": {"mean_ms": 5.0}} for title in DRAWN}
    plot({"measured": measured, "machine": machine()}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
