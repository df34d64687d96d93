"""Measurements with a real server on this machine: fidelity of the simulator, and changes of the allocation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.arlo.allocation import choose
from benchmarks.arlo.prepare import PARTITIONED, prepare
from benchmarks.arlo.systems import write_repository
from benchmarks.arlo.workload import ArloWorkload
from benchmarks.cluster.simulated import reallocation
from benchmarks.cluster.simulated.fidelity import (
    CALIBRATED_AT,
    LOADS,
    QUICK,
    ComparedTrace,
    FidelityRound,
    FidelitySize,
    measure_rounds,
    median_error,
)
from benchmarks.cluster.simulated.reallocation import ReallocationResult
from benchmarks.kept import cache_folder
from benchmarks.report import Claim, Report, progress
from tidal.server.child import tidal_serve

_PRECISION = "fp32"
_PAPER = {"mean": "4.3%", "p98": "2.6%"}


def measure(report: Report, data: Path | None, quick: bool) -> None:
    """Prepare and serve the model, and add tables and claims."""
    artefacts = prepare(_PRECISION)
    manifest = artefacts.manifest(PARTITIONED)
    workload = ArloWorkload(artefacts.version(PARTITIONED) / "tokenizer" / "tokenizer.json", data)
    progress("fidelity: choosing instances by simulation")
    allocation = choose(manifest, workload, instances=len(os.sched_getaffinity(0)))
    sizes = QUICK if quick else FidelitySize()
    with tempfile.TemporaryDirectory(prefix="arlo-cluster-", dir=cache_folder()) as folder:
        repository = Path(folder)
        write_repository(
            repository, artefacts, [], instances=allocation.instances, slo_ms=allocation.slo_ms, fill=allocation.fill
        )
        progress("fidelity: starting tidal serve")
        with tidal_serve(repository, "--model", PARTITIONED) as server:
            rounds = measure_rounds(server, PARTITIONED, manifest, allocation, workload, sizes)
        add_fidelity(report, rounds, sizes)
        progress("changing the allocation under traffic")
        changes, at_least = (1, 100) if quick else (3, 1000)
        result = reallocation.measure(repository, PARTITIONED, changes=changes, at_least=at_least)
        add_reallocation(report, result, changes)


def add_fidelity(report: Report, rounds: Sequence[FidelityRound], sizes: FidelitySize) -> None:
    """Add tables of the calibrations, and of simulated and measured latencies."""
    first = rounds[0].calibration
    instances = {n: count for n, count in zip(first.max_lengths, first.instances, strict=True) if count}
    shown = ", ".join(f"{count} of {n}" for n, count in instances.items())
    rows = [_calibrated(turn, each, list(instances)) for turn, each in enumerate(rounds)]
    milliseconds = [f"{n}: profile / alone / loaded ms" for n in instances]
    title = f"calibration on this machine, {shown}; loaded is {CALIBRATED_AT} % of the capacity, on other arrivals"
    columns = ["round", "capacity 1/s", *milliseconds, "others busy", "overhead: alone / loaded ms"]
    report.add_table(title, columns, rows)
    rows = [
        _compared(turn, one) for percent in LOADS for turn, each in enumerate(rounds) for one in each.compared
        if one.percent == percent
    ]  # fmt: skip
    title = (
        f"fidelity: server and simulator under the same Poisson arrivals, {sizes.measured_s:g} s per round; in "
        "brackets the simulation with the manifest's profile only"
    )
    # cpu: share of the cores that the server's processes used; busy: simulated utilisation of the instances; others:
    # share of the cores that processes other than server and clients used.
    columns = ["load", "round", "1/s", "mean ms", "simulated", "error", "p98 ms", "simulated", "error"]
    report.add_table(title, [*columns, "failed", "cpu", "busy", "others"], rows)
    report.measured["fidelity"] = {
        "instances": {str(n): count for n, count in instances.items()},
        "slo_ms": first.slo_s * 1e3,
        "sizes": asdict(sizes),
        "rounds": [_kept(each) for each in rounds],
    }
    for percent in LOADS:
        measured, p98, by_profile = (
            median_error(rounds, percent, p98=tail, by_profile=simple)
            for tail, simple in ((False, False), (True, False), (False, True))
        )
        note = f"median of {len(rounds)} rounds; p98 {p98:.1%} (paper {_PAPER['p98']}); by the profile alone "
        note += f"{by_profile:.1%}"
        report.claims.append(Claim(f"fidelity_mean_error[{percent}]", "<= 0.10", measured, _PAPER["mean"], note))


def add_reallocation(report: Report, result: ReallocationResult, changes: int) -> None:
    """Add the table of changes and failed queries, and the claims; `changes` is the goal."""
    steps = [" ".join(f"{n}={count}" for n, count in each.items() if count) for each in result.allocations]
    rows = [
        ["queries", str(result.sent)],
        ["failed", f"{result.failed}{f', first: {result.first_error}' if result.first_error else ''}"],
        ["changes", str(result.changes)],
        ["seconds per change", ", ".join(f"{each:.1f}" for each in result.change_s)],
        ["longest wait of a client, ms", f"{result.worst_ms:.0f}"],
        ["seconds in total", f"{result.seconds:.0f}"],
        *([f"instances {'at first' if i == 0 else f'after change {i}'}", step] for i, step in enumerate(steps)),
    ]
    report.add_table("tidal controller under traffic with shifting lengths", ["what", "measured"], rows)
    report.measured["reallocation"] = asdict(result)
    note = f"{result.sent} queries during {result.changes} changes, timeouts included"
    made = Claim("reallocations_under_traffic", f">= {changes}", result.changes, note="by `tidal controller`")
    report.claims += [made, Claim("failed_during_reallocation", "== 0", result.failed, note=note)]


def _calibrated(turn: int, each: FidelityRound, lengths: Sequence[int]) -> list[str]:
    calibration = each.calibration
    cells = []
    for length in lengths:
        runtime = calibration.max_lengths.index(length)
        times = (calibration.lone.service_s(runtime), calibration.loaded.service_s(runtime))
        parts = [f"{s * 1e3:.1f}" if s is not None else "-" for s in (calibration.profile_s[runtime], *times)]
        cells.append(" / ".join(parts))
    then = calibration.others_when_loaded
    shares = " / ".join(f"{then[calibration.max_lengths.index(length)]:.0%}" for length in lengths)
    overheads = f"{calibration.overhead_s * 1e3:.2f} / {calibration.loaded_overhead_s * 1e3:.2f}"
    return [str(turn + 1), f"{each.capacity:.1f}", *cells, shares, overheads]


def _compared(turn: int, one: ComparedTrace) -> list[str]:
    def both(simulated: float, by_profile: float) -> str:
        return f"{simulated:.1f} ({by_profile:.1f})"

    def off(simulated: float, by_profile: float, measured: float) -> str:
        return f"{simulated / measured - 1:+.1%} ({by_profile / measured - 1:+.1%})"

    means = one.simulated.mean_ms, one.by_profile.mean_ms
    tails = one.simulated.percentile_ms(98), one.by_profile.percentile_ms(98)
    mean, p98 = one.server.mean_ms, one.server.percentile_ms(98)
    return [
        f"{one.percent} %",
        str(turn + 1),
        f"{one.rate:.1f}",
        f"{mean:.1f}",
        both(*means),
        off(*means, mean),
        f"{p98:.1f}",
        both(*tails),
        off(*tails, p98),
        str(sum(one.server.errors.values())),
        f"{one.server.utilisation:.0%}",
        f"{one.simulated.utilisation:.0%}",
        f"{one.server.others:.0%}",
    ]


def _kept(each: FidelityRound) -> dict[str, object]:
    compared = {
        str(one.percent): {
            "rate": one.rate,
            "requests": len(one.server.latencies_ms),
            "errors": one.server.errors,
            "cpu": one.server.utilisation,
            "others": one.server.others,
            "busy": one.simulated.utilisation,
            "mean_ms": one.server.mean_ms,
            "p98_ms": one.server.percentile_ms(98),
            "simulated_mean_ms": one.simulated.mean_ms,
            "simulated_p98_ms": one.simulated.percentile_ms(98),
            "by_profile_mean_ms": one.by_profile.mean_ms,
            "by_profile_p98_ms": one.by_profile.percentile_ms(98),
        }
        for one in each.compared
    }
    return {"capacity": each.capacity, "calibration": asdict(each.calibration), "compared": compared}
