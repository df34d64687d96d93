"""`python -m benchmarks.batcher [--quick] [--json FILE]`."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.batcher.batchings import Batching, search_batcher, search_plain
from benchmarks.batcher.engine import publish_engine
from benchmarks.batcher.measure import BatcherCell, measure
from benchmarks.batcher.plot import CAPACITY, SATURATED, plot
from benchmarks.report import Claim, Report, progress
from benchmarks.serving_path.prepare import MODEL, prepare
from tidal.batcher.build import build
from tidal.engine_model.manifest import EngineManifest
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer, tidal_serve

ENGINE = "mixed_lengths"
_SEARCH_SEED, _FIRST_SEED = 500, 1000


@dataclass(slots=True)
class BatcherBench:
    """A server with the model, loaded with one batching at a time."""

    server: RunningServer
    manifest: EngineManifest
    seconds: float
    searched: list[list[str]] = field(default_factory=list)
    loaded: Batching | None = None
    #: Results of the search by load and candidate: a candidate that is still the best is not measured again.
    scores: dict[tuple[str, Batching], float] = field(default_factory=dict)

    def run(self, batching: Batching, rate: float, *, seed: int, seconds: float | None = None) -> BatcherCell:
        """Measure one cell; the model is reloaded if its batching changes."""
        if batching != self.loaded:
            cores = len(os.sched_getaffinity(0))
            self.server.control.load(ENGINE, batching.config(self.manifest, cores))
            self.loaded = batching
        names = tuple(each.name for each in self.manifest.inputs)
        return measure(self.server, ENGINE, names, rate=rate, seconds=seconds or self.seconds, seed=seed)

    def best(self, load: str, rate: float, candidates: Sequence[Batching]) -> Batching:
        """Return the candidate with the lowest mean latency, or the most answers if all requests are sent at once."""
        for candidate in candidates:
            if (load, candidate) in self.scores:
                continue
            progress(f"searching at {load}: {candidate.name}")
            cell = self.run(candidate, rate, seed=_SEARCH_SEED)
            self.scores[load, candidate] = -cell.per_second if math.isinf(rate) else cell.mean_ms
            cells = [f"{cell.mean_ms:.1f}", f"{cell.per_second:.1f}", f"{cell.mean_batch:.1f}"]
            self.searched.append([load, candidate.name, *cells])
        return min(candidates, key=lambda candidate: self.scores[load, candidate])


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer candidates and rounds: 3 minutes, not 12.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Compare batching of mixed lengths with and without the custom batcher (real MiniLM weights, `engine` backend)."""
    report = Report("batcher", quick)
    build()
    source, _, digest = prepare()
    print(f"artefacts {digest}; 8 to 512 tokens, padded to multiples of 16; every request is different")
    front = ModelEntry(source / MODEL).latest()
    assert front is not None
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder:
        repository = Path(folder)
        manifest = publish_engine(front, repository / ENGINE)
        (repository / ENGINE / "config.pbtxt").write_text('backend: "engine"\n')  # until it is loaded with others
        progress("starting tidal serve")
        with tidal_serve(repository, "--exit-timeout", "3") as server:
            bench = BatcherBench(server, manifest, 2 if quick else 3)
            _compare(report, bench, quick)
            report.add_table("search", ["load", "batching", "mean ms", "answers/s", "rows a batch"], bench.searched)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def _compare(report: Report, bench: BatcherBench, quick: bool) -> None:
    progress("capacity of the plain batcher: all requests at once")
    capacity = bench.run(Batching(16), math.inf, seed=_SEARCH_SEED).per_second
    report.measured[CAPACITY] = capacity
    loads = {f"{percent}%": percent / 100 * capacity for percent in ((80,) if quick else (70, 95))}
    rows, pair = [], dict[str, Batching]()
    for load, rate in {SATURATED: math.inf, **loads}.items():

        def pick(candidates: Sequence[Batching], load: str = load, rate: float = rate) -> Batching:
            return bench.best(load, rate, candidates)

        if not pair or not quick:  # a quick run searches at the first load alone
            pair = {"plain": search_plain(pick, quick=quick), "batcher": search_batcher(pick, quick=quick)}
        cells: dict[str, list[BatcherCell]] = {system: [] for system in pair}
        for turn in range(2 if quick else 3):
            progress(f"comparing at {load}, round {turn + 1}")
            for system in pair if turn % 2 == 0 else reversed(pair):
                cells[system].append(
                    bench.run(pair[system], rate, seed=_FIRST_SEED + turn, seconds=(2 if quick else 3) * bench.seconds)
                )
        _claim(report, load, pair, cells)
        rows += [_row(load, system, pair[system], cells[system]) for system in pair]
    columns = ["load", "system", "batching", "mean ms", "p50", "p98", "answers/s", "rows a batch"]
    report.add_table("medians of the rounds", columns, rows)


def _claim(report: Report, load: str, pair: dict[str, Batching], cells: dict[str, list[BatcherCell]]) -> None:
    ours, theirs = cells["batcher"], cells["plain"]
    note = f"{pair['batcher'].name} against {pair['plain'].name}"

    def ratio(of: str, *arguments: float) -> float:
        figures = [
            [getattr(cell, of)(*arguments) if arguments else getattr(cell, of) for cell in each]
            for each in (ours, theirs)
        ]
        return float(statistics.median(a / b for a, b in zip(*figures, strict=True)))

    if load == SATURATED:
        report.claims.append(Claim("answers_vs_plain", ">= 1.0", ratio("per_second"), note=note))
    else:
        report.claims.append(Claim(f"mean_latency_vs_plain[{load}]", "<= 1.0", ratio("mean_ms"), note=note))
        report.claims.append(Claim(f"p98_latency_vs_plain[{load}]", "<= 1.0", ratio("percentile_ms", 98)))
    failed = sum(cell.failed for cell in (*ours, *theirs))
    report.claims.append(Claim(f"failed[{load}]", "== 0", failed))
    report.measured[load] = {
        system: {"batching": asdict(pair[system]), "rounds": [asdict(cell) for cell in cells[system]]}
        for system in pair
    }


def _row(load: str, system: str, batching: Batching, cells: Sequence[BatcherCell]) -> list[str]:
    medians = [
        statistics.median(cell.mean_ms for cell in cells),
        *(statistics.median(cell.percentile_ms(percent) for cell in cells) for percent in (50, 98)),
        statistics.median(cell.per_second for cell in cells),
        statistics.median(cell.mean_batch for cell in cells),
    ]
    return [load, system, batching.name, *(f"{value:.1f}" for value in medians)]


if __name__ == "__main__":
    typer.run(main)
