"""`python -m benchmarks.otas [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.otas import prompt_forms, simulated, simulated_claims
from benchmarks.otas.decisions import decision_times
from benchmarks.otas.inputs import ASSUMED, GAMMAS, INFERRED, PROFILES, READ_OFF, Traces, loading_times
from benchmarks.otas.live import run as live
from benchmarks.otas.live.artefacts import ArtefactsMissing
from benchmarks.otas.live.rounds import FULL, QUICK
from benchmarks.otas.plot import plot
from benchmarks.otas.prepare import load
from benchmarks.otas.small_cases import Gaps, allocation_gaps, policy_gaps
from benchmarks.report import Claim, Report, progress


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs; under 3 minutes.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder with cifar10 and clothing_small, and twitter_2021_rate for real rates.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and a figure (.png) beside it.")
    ] = None,
) -> None:
    """Compare OTAS with other systems on a server and in simulation, and its policies with the exact optimum."""
    report, traces = Report("otas", quick), Traces(data, quick)
    kept = None
    try:
        artefacts = load(data)
        kept = live.measure(report, artefacts, QUICK if quick else FULL)
        if not quick:
            prompt_forms.add(report, prompt_forms.compare(artefacts))
    except ArtefactsMissing as missing:
        print(f"live: not run, {missing}; run `make bench-artefacts DATA=DIR` to build the models of all benchmarks")
    print(traces.description)
    for title, facts in (("read off the paper", READ_OFF), ("assumed", ASSUMED), ("inferred", INFERRED)):
        print(f"{title}:\n" + "\n".join(f"- {each}" for each in facts))
    report.measured |= {
        "traces": traces.description, "read_off": READ_OFF, "assumed": ASSUMED, "inferred": INFERRED,
    }  # fmt: skip
    report.measured["throughput"] = {
        name: {str(gamma): profile.latency.throughput(gamma) for gamma in GAMMAS} for name, profile in PROFILES.items()
    }
    _decisions(report, quick)
    _gaps(report, quick)
    loading_s = loading_times(report.measured.get("live"))
    print("loading times as live: " + ", ".join(f"{size} {took:.2f} s" for size, took in loading_s.items()))
    for compared in simulated.compare(traces, loading_s):
        simulated_claims.add(report, compared)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))
    if kept is not None:
        kept.unlink()


def _decisions(report: Report, quick: bool) -> None:
    progress("timing decisions")
    times = decision_times(20 if quick else 200)
    rows = [
        [each.policy, str(each.batches), f"{each.queries:.0f}", f"{each.best_ms:.3f}", f"{each.median_ms:.3f}"]
        for each in times
    ]
    report.add_table("a decision", ["policy", "batches", "queries", "best ms", "median ms"], rows)
    report.measured["decisions"] = [asdict(each) for each in times]
    hardest = next(each for each in times if (each.policy, each.batches) == ("pareto", 32))
    note = f"processor time, median; best {hardest.best_ms:.3f}"
    report.claims.append(Claim("decision_ms_32_batches", "<= 1", hardest.median_ms, note=note))


def _gaps(report: Report, quick: bool) -> None:
    cases = 40 if quick else 1000
    found: dict[str, Gaps] = {}
    for name, measure in (("whole policies", policy_gaps), ("Algorithm 2 alone", allocation_gaps)):
        progress(f"small cases: {name}")
        found[name] = measure(cases)
    rows = [
        [
            name, str(each.cases), f"{each.paper / each.optimum:.2%}", f"{each.pareto / each.optimum:.2%}",
            str(each.paper_optimal), str(each.pareto_optimal), f"{each.closed:.1%}",
        ]
        for name, each in found.items()
    ]  # fmt: skip
    columns = ["small cases", "number", "paper's utility", "pareto's", "paper optimal", "pareto optimal", "gap closed"]
    report.add_table("of the most that a few queries can earn (every order, batch and γ)", columns, rows)
    report.measured["small_cases"] = {name: {**asdict(each), "closed": each.closed} for name, each in found.items()}
    whole, alone = found["whole policies"], found["Algorithm 2 alone"]
    note = f"{whole.cases} cases; for given batches {alone.closed:.3f}"
    report.claims.append(Claim("pareto_gap_closed", ">= 0.5", whole.closed, note=note))


if __name__ == "__main__":
    typer.run(main)
