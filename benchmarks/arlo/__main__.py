"""`python -m benchmarks.arlo [--quick] [--precision P] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.arlo import gpu, outcome, plot
from benchmarks.arlo.allocation import Allocation, choose
from benchmarks.arlo.expected import expected_ratios
from benchmarks.arlo.prepare import PARTITIONED, POLYMORPHIC, ArloArtefacts, prepare
from benchmarks.arlo.rounds import measure_all
from benchmarks.arlo.systems import BASELINES, BIN_PACKING_MODEL, candidates, plan, write_repository
from benchmarks.arlo.workload import BURSTS, ArloWorkload
from benchmarks.kept import cache_folder, kept_file
from benchmarks.report import Report, progress
from tidal.device import has_gpu
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import tidal_serve

ROUNDS, QUICK_ROUNDS = 5, 2


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer systems and requests; under 3 minutes.")] = False,
    precision: Annotated[str, typer.Option(help="Precision of all systems: fp32 or bf16.")] = "fp32",
    data: Annotated[Path | None, typer.Option(help="Folder with tweet_lengths/lengths.csv.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables and plot beside it.")] = None,
) -> None:
    """Compare ways to serve inputs of varying length: padding, dynamic shapes, bin packing, Arlo, Tidal."""
    report = Report("arlo", quick)
    artefacts = prepare(precision)
    workload = ArloWorkload(artefacts.version(POLYMORPHIC) / "tokenizer" / "tokenizer.json", data)
    progress("choosing the partitioned systems' instances by simulation")
    cores = len(os.sched_getaffinity(0))
    allocation = choose(artefacts.manifest(PARTITIONED), workload, instances=cores)
    _add_setting(report, artefacts, allocation, workload)
    report.add_table(
        "effect of ordering, batching and lanes alone, simulated with the profile (no overhead)",
        ["load", "mean, ratio to DT", "p98"],
        expected_ratios(artefacts.manifest(POLYMORPHIC), workload),
    )
    planned = plan(quick=quick)
    baselines = [config for system in BASELINES for config in candidates(system, quick=quick)]
    with tempfile.TemporaryDirectory(prefix="arlo-repository-", dir=cache_folder()) as folder:
        repository = Path(folder)
        write_repository(
            repository,
            artefacts,
            baselines,
            instances=allocation.instances,
            slo_ms=allocation.slo_ms,
            fill=allocation.fill,
        )
        progress("starting tidal serve")
        with tidal_serve(repository, "--model", POLYMORPHIC, "--model", PARTITIONED) as server:
            server.control.load(BIN_PACKING_MODEL, None)
            kept = _kept(artefacts, quick, data)
            rounds = QUICK_ROUNDS if quick else ROUNDS
            run = measure_all(server, workload, planned, rounds=rounds, quick=quick, kept=kept)
    columns = ["system", "instances x threads", "full load 1/s", *(f"mean ms at {p} %" for p in (40, 70, 90))]
    report.add_table("parameter search of the baselines (* chosen for that load)", columns, run.tuned.rows)
    report.measured["tuned"] = asdict(run.tuned)
    report.measured["capacities"] = run.capacities
    columns = ["round", *run.capacities[0]]
    rows = [[str(turn + 1), *(f"{value:.1f}" for value in each.values())] for turn, each in enumerate(run.capacities)]
    report.add_table("capacity: answers per second at full load (loads are percentages of it)", columns, rows)
    outcome.add_tables(report, run, planned, allocation.slo_ms)
    outcome.add_ratios(report, run, planned)
    outcome.add_claims(report, run)
    if has_gpu():
        gpu.measure(report, artefacts, precision=precision)
    else:
        print("gpu_static_vs_dynamic: not run, this machine has no GPU")
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))
    kept.unlink()


def _add_setting(report: Report, artefacts: ArloArtefacts, chosen: Allocation, workload: ArloWorkload) -> None:
    manifest = artefacts.manifest(POLYMORPHIC)
    facts = {
        "model": "all-MiniLM-L6-v2 with a trained intent head",
        "artefacts": artefacts.digest,
        "engine": f"{manifest.engine}, {manifest.precision}",
        "lengths": workload.origin,
        "arrivals": "Poisson; bursty: Markov-modulated, "
        f"{BURSTS['burst_factor']:g} times the mean rate for {BURSTS['burst_share']:.0%} of the time, "
        f"{BURSTS['burst_s']:g} s per burst",
        "seeds": "searches below 1000; measured: 1000 + 100 x round + number of the load",
        "SLO": f"{chosen.slo_ms} ms, 20 times the longest runtime's latency, as in the paper's Figure 4",
        "Arlo's instances": ", ".join(f"{count} of {n}" for n, count in chosen.instances.items() if count),
        "INFaaS-like": f"the same instances; bins of {chosen.fill:.0%} of the capacity within the SLO, the best in the "
        "simulation",
        "latency": "from the scheduled time of sending to the answer, with tokenisation and HTTP (the paper excludes "
        "tokenisation)",
        "caches": "off; no system receives a text twice",
    }
    report.measured["setting"] = {**facts, "instances": chosen.instances, "slo_ms": chosen.slo_ms}
    report.add_table("setting", ["what", ""], [[name, text] for name, text in facts.items()])


def _kept(artefacts: ArloArtefacts, quick: bool, data: Path | None) -> Path:
    """Return the file of completed measurements; its name depends on artefacts, size and data."""
    files = [artefacts.version(model) / MANIFEST_FILE for model in (POLYMORPHIC, PARTITIONED)]
    if data is not None:
        files += sorted((data / "tweet_lengths").glob("*"))
    return kept_file("arlo-run", quick, files=files)


if __name__ == "__main__":
    typer.run(main)
