"""`python -m benchmarks.serving_path [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.report import Claim, Report, progress
from benchmarks.serving_path import agreement, overhead, plot, publishing, recovery, throughput
from benchmarks.serving_path.prepare import MODEL, prepare
from benchmarks.texts import TextMaker, tweet_lengths
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer, tidal_serve

MIXING = "intents_mixing"
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and concurrencies; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with tweet_lengths/lengths.csv.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and plot beside it.")] = None,
) -> None:
    """Measure the overhead and the throughput of Tidal's serving path (real MiniLM weights, fp32, OpenVINO)."""
    report = Report("serving_path", quick)
    source_repository, source, digest = prepare()
    origin = tweet_lengths(1, seed=0, data=data)[1]
    print(f"artefacts {digest}; {origin}; every text is sent once; response cache off")
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder:
        repository = Path(folder)
        shutil.copytree(source_repository / MODEL, repository / MODEL)
        version_dir = ModelEntry(source_repository / MODEL).latest()
        assert version_dir is not None
        for candidate in throughput.CANDIDATES:
            candidate.write(repository, version_dir)
        manifest = load_arlo_manifest(version_dir)
        report.measured["model"] = {
            "precision": manifest.precision,
            "engine": manifest.engine,
            "dynamic": manifest.runtimes[-1].dynamic,
            "threads": manifest.profile.threads,
            "lengths": origin,
        }
        progress("starting tidal serve")
        # Requests lost with the killed process count as in flight at the end: a short exit timeout skips the wait.
        with tidal_serve(repository, "--model", MODEL, "--exit-timeout", "3") as server:
            maker = TextMaker(version_dir / manifest.tokenizer.file, seed=2)
            _overhead(report, server, version_dir, quick)
            _throughput(report, server, maker, data, quick)
            progress("comparing served rows with the unmodified model")
            agreement.write_mixing_model(repository, MIXING, version_dir)
            server.control.load(MIXING, None)
            rows = agreement.measure(server, MIXING, source, maker, data, rows=300 if quick else 2000)
            report.measured["agreement"] = rows
            note = (
                f"{rows['mixed_batches']:.0f} batches of at least 8 distinct lengths, "
                f"mean {rows['mean_distinct_lengths']:.1f}, max error {rows['max_abs_error']:.1e}"
            )
            report.claims.append(Claim("row_agreement", ">= 0.999", rows["agreement"], note=note))
            report.claims.append(Claim("row_agreement_mixed_batches", ">= 1", rows["mixed_batches"]))
            server.control.unload(MIXING)
            progress("publishing under load")
            result = publishing.measure(
                server, repository, MODEL, maker, changes=3 if quick else 6, at_least=1000 if quick else 3000
            )
            report.measured["publishing"] = asdict(result)
            note = f"{result.sent} requests during {result.changes} publishes {result.first_error}".strip()
            report.claims.append(Claim("failed_during_publish", "== 0", result.failed, note=note))
            progress("killing the model's process")
            served_again_s = recovery.measure(server, MODEL, maker)
            report.measured["served_again_s"] = served_again_s
            recovered = [["first answer", f"{served_again_s:.1f}"]]
            report.add_table("recovery from a killed model process", ["", "s"], recovered)
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))


def _overhead(report: Report, server: RunningServer, version_dir: Path, quick: bool) -> None:
    progress("latency of one query at a time")
    bare = throughput.CANDIDATES[0].model
    server.control.load(bare, None)
    medians = overhead.measure(
        server, MODEL, bare, version_dir, rounds=3 if quick else 15, queries=40 if quick else 150
    )
    base = medians["in process"]
    rows, added_by = [], {}
    for name, values in medians.items():
        added = statistics.median(v - b for v, b in zip(values, base, strict=True))
        rows.append(
            [
                name,
                f"{statistics.median(values):.2f}",
                f"{added:.2f}",
                f"{statistics.median(values) / statistics.median(base):.2f}",
            ]
        )
        added_by[name] = added
    server.control.unload(bare)
    report.measured["overhead_ms"] = medians
    note = f"{overhead.TOKENS} tokens, gRPC; a bare synchronous model adds {added_by['grpc, bare model']:.2f}"
    report.claims.append(Claim("overhead_p50_ms", "<= 1.0", added_by["grpc"], note=note))
    columns = ["path", "p50 ms", "added ms", "ratio"]
    report.add_table(f"one query of {overhead.TOKENS} tokens at a time, median of {len(base)} rounds", columns, rows)


def _throughput(report: Report, server: RunningServer, maker: TextMaker, data: Path | None, quick: bool) -> None:
    best, searched = throughput.search(server, maker, data, seconds=1 if quick else 3)
    columns = ["bare model (instances x threads)", *(f"c={c} 1/s" for c in best)]
    report.add_table("parameter search of the bare model", columns, searched)
    for config in set(best.values()):
        server.control.load(config.model, None)
    rows = []
    for concurrency in (1, 8, 64) if quick else CONCURRENCIES:
        bare = throughput.bare_for(best, concurrency)
        progress(f"throughput at concurrency {concurrency} against {bare.model}")
        ratio, ours, theirs = throughput.compare(
            server,
            MODEL,
            bare,
            maker,
            data,
            concurrency=concurrency,
            rounds=2 if quick else 5,
            seconds=1.5 if quick else 5,
        )
        cells = [str(concurrency), bare.model]
        for results in (theirs, ours):
            cells += [
                f"{statistics.median(r.per_second for r in results):.0f}",
                f"{statistics.median(r.mean_batch for r in results):.1f}",
                f"{statistics.median(r.utilisation for r in results):.0%}",
            ]
        rows.append([*cells, f"{ratio:.2f}"])
        failed = sum(r.failed for r in (*ours, *theirs))
        report.measured.setdefault("throughput", {})[str(concurrency)] = {
            "bare": [asdict(r) for r in theirs],
            "tidal": [asdict(r) for r in ours],
            "ratio": ratio,
        }
        note = f"against {bare.model}" + (f"; {failed} failed" if failed else "")
        report.claims.append(Claim(f"throughput_vs_bare_backend[{concurrency}]", ">= 1.0", ratio, note=note))
    columns = ["concurrency", "bare", "bare 1/s", "batch", "cpu", "tidal 1/s", "batch", "cpu", "ratio"]
    report.add_table("throughput, lengths of tweets", columns, rows)
    for config in set(best.values()):
        server.control.unload(config.model)


if __name__ == "__main__":
    typer.run(main)
