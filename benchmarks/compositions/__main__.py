"""`python -m benchmarks.compositions [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compositions import outcome, utility, utility_served
from benchmarks.compositions.levels import CLAIMED, SYSTEMS, write_system
from benchmarks.compositions.plot import plot
from benchmarks.compositions.prepare import CascadeArtefacts, make_queries, prepare
from benchmarks.compositions.rounds import FULL, QUICK, measure
from benchmarks.kept import cache_folder
from benchmarks.report import Report, progress
from tidal.server.child import tidal_serve

_SEED = 100


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer systems and queries: a few minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with tweet_lengths; default: its percentiles.")] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure what systems gain from each other, each against the best alternative without the other."""
    report = Report("compositions", quick)
    artefacts = prepare(data, placements=not quick)
    print(f"artefacts {artefacts.digest}; every text is different, caches are off")
    _levels(report, artefacts, data, quick=quick)
    loads = (1.0, 1.5) if quick else (0.7, 1.0, 1.5, 2.0)
    count, rounds = (2500, 2) if quick else (15_000, 3)
    found = utility.compare(artefacts.tables, loads, queries=count, rounds=rounds, report_progress=progress)
    outcome.add_utility(report, found)
    _utility_served(report, artefacts, loads, quick=quick)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def _levels(report: Report, artefacts: CascadeArtefacts, data: Path | None, *, quick: bool) -> None:
    size = QUICK if quick else FULL
    systems = CLAIMED if quick else SYSTEMS
    queries = make_queries(size.rounds * size.queries, _SEED, data)
    with tempfile.TemporaryDirectory(prefix="compositions-levels-", dir=cache_folder()) as folder:
        for system in systems:
            write_system(Path(folder), artefacts, system)
        progress("starting tidal serve with the cascades")
        named = [part for system in systems for part in ("--model", system.model)]
        with tidal_serve(Path(folder), "--exit-timeout", "3", *named) as server:
            run = measure(server, systems, queries, size)
    outcome.add_levels(report, systems, run)


def _utility_served(report: Report, artefacts: CascadeArtefacts, loads: Sequence[float], *, quick: bool) -> None:
    seconds, rounds = (4.0, 2) if quick else (10.0, 3)
    with tempfile.TemporaryDirectory(prefix="compositions-utility-", dir=cache_folder()) as folder:
        utility_served.write_models(Path(folder), artefacts)
        progress("starting tidal serve with the shared encoder")
        with tidal_serve(Path(folder), "--exit-timeout", "3") as server:
            found = utility_served.compare(
                server, artefacts, loads, seconds=seconds, rounds=rounds, report_progress=progress
            )
    outcome.add_utility_served(report, found)


if __name__ == "__main__":
    typer.run(main)
