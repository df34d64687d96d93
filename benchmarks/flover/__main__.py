"""`python -m benchmarks.flover [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.flover import cancels, equality, plot, tables
from benchmarks.flover.bench import Bench
from benchmarks.flover.claims import make_claims
from benchmarks.flover.equality import Equality
from benchmarks.flover.kept_run import Run
from benchmarks.flover.load import PROMPT, Loads
from benchmarks.flover.plan import FULL, QUICK, Plan, Size
from benchmarks.flover.prepare import Artefacts, load, prepare
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
        bool, typer.Option("--quick", help="Short texts, fewer cases and rounds; under 3 minutes.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with azure_llm_2023, for lengths of real answers.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables and plot beside it.")] = None,
) -> None:
    """Compare ways to generate for many requests on a decoder of GPT-2 small's size, with random weights."""
    compare(load() if quick else prepare(), QUICK if quick else FULL, data, json, quick=quick)


def compare(artefacts: Artefacts, size: Size, data: Path | None, json: Path | None, *, quick: bool) -> None:
    """Measure what is not kept of a run that was cut short, and report."""
    report = Report("flover", quick)
    _add_setting(report, artefacts, size, data)
    manifests = [artefacts.version(precision) / MANIFEST_FILE for precision in {artefacts.precision, "fp32"}]
    run = Run.open(kept_file("flover-run", size, artefacts.digest, str(data), files=sorted(manifests)))
    if run.count():
        progress(f"going on after {run.count()} loads of {run.file}")
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
    artefacts: Artefacts, run: Run, size: Size, data: Path | None, *, quick: bool
) -> tuple[dict[str, Equality], int]:
    """Everything that goes through the server: tokens against the reference by precision, and lost slots."""
    loads = Loads(artefacts.manifest.form.vocabulary)
    with tempfile.TemporaryDirectory(prefix="flover-repository-", dir=artefacts.folder) as folder:
        write_repository(Path(folder), artefacts)
        progress("starting tidal serve")
        there = [part for model in (TIDAL, UNSHUFFLED) for part in ("--model", model)]
        with tidal_serve(Path(folder), *there) as server:
            bench = Bench(server, artefacts)
            batched = bool(size.windows_s or size.fixed)
            Search(bench, run, loads, size.searched, batched=batched, quick=quick).search()
            measure(bench, run, Plan(size, loads, run, data))
            exact = _equality(bench, run, size)
            progress(f"{size.cancels} clients leave")
            left: dict[str, Any] = run.fact("cancels", lambda: asdict(_leave(server, size.cancels)))
    return exact, int(left["slots_lost"])


def _leave(server: RunningServer, count: int) -> cancels.Figures:
    return cancels.run(cancels.target_of(server, TIDAL), count=count, warm_up=count // 3)


def _equality(bench: Bench, run: Run, size: Size) -> dict[str, Equality]:
    """Served tokens in float32, and in the precision that is compared."""

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


def _add_setting(report: Report, artefacts: Artefacts, size: Size, data: Path | None) -> None:
    manifest, form = artefacts.manifest, artefacts.manifest.form
    facts = {
        "artefacts": artefacts.digest,
        "decoder": f"of GPT-2 small's size: {form.layers} layers of {form.width}, {form.vocabulary} tokens; random "
        "weights",
        "same for all": f"{artefacts.precision}, {manifest.threads} threads, tokens streamed over gRPC",
        "peers": "continuous batching of transformers (SDPA) and of OpenVINO GenAI (paged attention), keys and values "
        f"in {artefacts.precision}",
        "instances": "a thread for each request over shared weights; keys and values of all 32 fit",
        "Tidal": f"{manifest.max_concurrency} slots of {manifest.max_length} tokens, "
        f"{manifest.memory_bytes / 1e6:.0f} MB; kernels of its own: {kernel_level() or 'none, torch alone'}",
        "requests": f"prompts of {PROMPT} tokens; each wants so many tokens, greedily, and nothing else ends it",
        "Poisson": "exponential gaps, scaled to their mean, so that the last of a round's requests comes at its time",
        "recorded lengths": "none (no --data)" if data is None else f"Azure 2023 conversations, {size.tokens} at most",
    }
    report.measured["setting"] = facts
    report.add_table("setting", ["what", ""], [[name, text] for name, text in facts.items()])


if __name__ == "__main__":
    typer.run(main)
