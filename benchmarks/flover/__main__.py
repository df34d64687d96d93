"""`python -m benchmarks.flover [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.flover import cancels, equality, plot, tables
from benchmarks.flover.bench import FloverBench
from benchmarks.flover.claims import make_claims
from benchmarks.flover.equality import Equality
from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.load import PROMPT, FloverLoadGenerator
from benchmarks.flover.plan import FULL, QUICK, FloverSize, MeasurementPlan
from benchmarks.flover.prepare import FloverArtefacts, load, prepare
from benchmarks.flover.rounds import measure
from benchmarks.flover.search import Search
from benchmarks.flover.systems import EXACT, TIDAL, UNSHUFFLED, write_repository
from benchmarks.kept import kept_file
from benchmarks.report import Report, progress
from tidal.flover.native.library import kernel_level
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer, tidal_serve


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Shorter texts, fewer cases and rounds; under 3 minutes.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder that contains azure_llm_2023, for recorded text lengths.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="File for the results; tables and plot are written next to it.")
    ] = None,
) -> None:
    """Compare systems that generate for many requests, on a decoder of GPT-2 small's size with random weights."""
    compare(load() if quick else prepare(), QUICK if quick else FULL, data, json, quick=quick)


def compare(artefacts: FloverArtefacts, size: FloverSize, data: Path | None, json: Path | None, *, quick: bool) -> None:
    """Measure what an interrupted run has not kept yet, and report."""
    report = Report("flover", quick)
    _add_setting(report, artefacts, size, data)
    manifests = [artefacts.version(precision) / MANIFEST_FILE for precision in {artefacts.precision, "fp32"}]
    run = FloverRun.open(kept_file("flover-run", size, artefacts.digest, str(data), files=sorted(manifests)))
    if run.count():
        progress(f"resuming after {run.count()} loads of {run.file}")
    exact, lost = _measure(artefacts, run, size, data, quick=quick)
    tables.add_search(report, run)
    tables.add_cases(report, run)
    tables.add_growth(report, run, size)
    tables.add_sweep(report, run, size)
    tables.add_threads(report, run, size)
    tables.add_equality(report, exact)
    report.claims += make_claims(run, size, exact["fp32"], lost)
    report.measured |= {
        "outcomes": {
            case: {system: [asdict(each) for each in rounds] for system, rounds in of_case.items()}
            for case, of_case in run.outcomes.items()
        },
        "forms": {name: asdict(form) for name, form in run.forms.items()},
        "searched": run.searched,
        "missing": run.missing,
        "peers in the search, s": run.peers_s,
        "cancels": run.facts["cancels"],
    }
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))
    run.file.unlink()


def _measure(
    artefacts: FloverArtefacts, run: FloverRun, size: FloverSize, data: Path | None, *, quick: bool
) -> tuple[dict[str, Equality], int]:
    """Measure everything that needs the server; returns the token equality by precision, and the slots lost."""
    loads = FloverLoadGenerator(artefacts.manifest.form.vocabulary)
    with tempfile.TemporaryDirectory(prefix="flover-repository-", dir=artefacts.folder) as folder:
        write_repository(Path(folder), artefacts)
        progress("starting tidal serve")
        there = [part for model in (TIDAL, UNSHUFFLED) for part in ("--model", model)]
        with tidal_serve(Path(folder), *there) as server:
            bench = FloverBench(server, artefacts)
            batched = bool(size.windows_s or size.fixed)
            Search(bench, run, loads, size.searched, batched=batched, quick=quick).search()
            measure(bench, run, MeasurementPlan(size, loads, run, data))
            exact = _equality(bench, run, size)
            progress(f"{size.cancels} clients cancel")
            left: dict[str, Any] = run.fact("cancels", lambda: asdict(_cancel_clients(server, size.cancels)))
    return exact, int(left["slots_lost"])


def _cancel_clients(server: RunningServer, count: int) -> cancels.Figures:
    return cancels.run(cancels.target_of(server, TIDAL), count=count, warm_up=count // 3)


def _equality(bench: FloverBench, run: FloverRun, size: FloverSize) -> dict[str, Equality]:
    """Equality of served tokens in float32, and in the compared precision."""

    def measured(precision: str, model: str) -> Equality:
        progress(f"tokens of {size.compared} prompts in {precision} against transformers")
        found = run.fact(
            f"equality {precision}",
            lambda: asdict(equality.measure(bench, model, bench.artefacts.references, size.compared)),
        )
        return Equality(**found)

    if bench.artefacts.precision == "fp32":
        return {"fp32": measured("fp32", TIDAL)}
    compared = measured(bench.artefacts.precision, TIDAL)
    bench.server.control.load(EXACT, None)
    exact = measured("fp32", EXACT)
    bench.unload(EXACT)
    return {"fp32": exact, bench.artefacts.precision: compared}


def _add_setting(report: Report, artefacts: FloverArtefacts, size: FloverSize, data: Path | None) -> None:
    manifest, form = artefacts.manifest, artefacts.manifest.form
    facts = {
        "artefacts": artefacts.digest,
        "decoder": f"of GPT-2 small's size: {form.layers} layers of {form.width}, {form.vocabulary} tokens; random "
        "weights",
        "same for all": f"{artefacts.precision}, {manifest.threads} threads, tokens streamed over gRPC",
        "peers": "continuous batching of transformers (SDPA) and of OpenVINO GenAI (paged attention), keys and values "
        f"in {artefacts.precision}",
        "instances": "one thread per request over shared weights; keys and values of all 32 fit",
        "Tidal": f"{manifest.max_concurrency} slots of {manifest.max_length} tokens, "
        f"{manifest.memory_bytes / 1e6:.0f} MB; native kernels: {kernel_level() or 'none, torch only'}",
        "requests": f"prompts of {PROMPT} tokens; greedy generation of a given number of tokens, without other end",
        "Poisson": "exponential gaps, scaled to their mean, so that all rounds take the same time",
        "recorded lengths": "none (no --data)" if data is None else f"Azure 2023 conversations, {size.tokens} at most",
    }
    report.measured["setting"] = facts
    report.add_table("setting", ["what", ""], [[name, text] for name, text in facts.items()])


if __name__ == "__main__":
    typer.run(main)
