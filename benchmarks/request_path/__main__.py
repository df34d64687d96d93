"""`python -m benchmarks.request_path [--quick] [--json FILE] [--before FOLDER] [--flame FOLDER]`."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kept import cache_folder
from benchmarks.report import Report, machine_line, progress
from benchmarks.request_path import every_system, models, outcome, plot, stub_calls, systems
from benchmarks.request_path.bare import SearchSpace, all_shapes, whole_shapes
from benchmarks.request_path.client_load import ClientLoad
from benchmarks.request_path.comparison import TIDAL, BareBench
from benchmarks.request_path.every_system import COMPARED
from benchmarks.request_path.load import Generator, PerfAnalyzerLoad
from benchmarks.request_path.prepare import (
    BEFORE_COMMIT,
    CLAIMED,
    PRECISIONS,
    RequestPathArtefacts,
    before_python,
    before_repository,
    prepare,
    real_model,
)
from benchmarks.request_path.rounds import Bench
from benchmarks.usage import Usage
from testing import perf_analyzer
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.child import tidal_serve


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a run.

    Attributes:
        rounds: Number of rounds.
        seconds: Length of a measurement in seconds.
        free: Numbers of requests in flight with the free engine.
        real: Numbers of requests in flight with the real engine.
        systems: Numbers of requests in flight of the other systems.
        streams: Numbers of concurrent generations.
        precisions: Precisions of the real engine.
        free_space: Parameters of the bare model with the free engine.
        real_space: The same with the real engine.
        floors: Numbers of requests in flight at which response senders are measured.
    """

    rounds: int
    seconds: float
    free: tuple[int, ...]
    real: tuple[int, ...]
    systems: tuple[int, ...]
    streams: tuple[int, ...]
    precisions: tuple[str, ...]
    free_space: SearchSpace
    real_space: SearchSpace
    floors: tuple[int, ...]


# Numbers of requests in flight at which single calls of the stub are measured.
_CALLS_AT = (1, 64)
_IN_FLIGHT, _STREAMS, _CORES = (1, 8, 16, 64, 256), (32, 64, 128), len(os.sched_getaffinity(0))
# Measurements of the real engine are that much longer: 64 of its answers take a second or two.
_REAL = 2
_FREE_SPACE = SearchSpace(all_shapes(_CORES), (8, 16, 32, 64), (0, 200, 1000))
# Batches of texts of any length may cost more than they save: the bare model pads them to the longest.
_REAL_SPACE = SearchSpace(all_shapes(_CORES), (1, 2, 8), (0, 200))
FULL = Size(
    rounds=5,
    seconds=3.0,
    free=_IN_FLIGHT,
    real=_IN_FLIGHT,
    systems=_IN_FLIGHT,
    streams=_STREAMS,
    precisions=PRECISIONS,
    free_space=_FREE_SPACE,
    real_space=_REAL_SPACE,
    floors=_IN_FLIGHT,
)
QUICK = Size(
    rounds=2,
    seconds=0.6,
    free=(1, 16, 64),
    real=(1, 8, 64),
    systems=(COMPARED,),
    streams=_STREAMS,
    precisions=(CLAIMED,),
    free_space=SearchSpace([(1, 1), (2, 1)], (32,)),
    real_space=SearchSpace(whole_shapes(_CORES), (1, 8)),
    floors=(64,),
)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and settings; under 3 minutes.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and plot beside it.")] = None,
    before: Annotated[Path | None, typer.Option(help=f"Folder of {BEFORE_COMMIT}, which prepare writes.")] = None,
    flame: Annotated[Path | None, typer.Option(help="Write flame graphs of the models' processes there.")] = None,
) -> None:
    """Measure the cost of the request path against bare models, with free and real engines."""
    size = QUICK if quick else FULL
    report = Report("request_path", quick)
    artefacts = prepare()
    earlier = None if before is None else before_repository(before)
    bench = Bench(_generator(), size.seconds, size.rounds)
    print(machine_line())
    print(f"artefacts {artefacts.digest}; load by {bench.generator.name}; every text is different, caches are off")
    report.measured["load"] = {"generator": bench.generator.name, "rounds": size.rounds, "seconds": size.seconds}
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder:
        repository = Path(folder)
        for source in (artefacts.free, artefacts.real):
            for config in source.glob("*/config.pbtxt"):
                shutil.copytree(config.parent, repository / config.parent.name)
        usage = Usage()
        progress("starting tidal serve")
        with tidal_serve(repository, "--model", models.ARLO, "--exit-timeout", "3") as server, usage.watch(server):
            stub_calls.add(report, bench, server, repository, _CALLS_AT)
            _against_bare(report, BareBench(bench, server, repository), artefacts, size, json)
        columns = ["engine", "settings", "in flight", "1/s", "p50 ms", "p99 ms"]
        report.add_table("parameter search of the bare model, other texts", columns, bench.searched)
        with ExitStack() as stack:
            progress("starting tidal serve with all systems")
            named = [part for model in every_system.SYSTEMS for part in ("--model", model)]
            servers = {TIDAL: stack.enter_context(tidal_serve(repository, "--exit-timeout", "3", *named))}
            if before is not None and earlier is not None:
                progress(f"starting tidal serve of {BEFORE_COMMIT}")
                python = before_python(before)
                servers[every_system.BEFORE] = stack.enter_context(tidal_serve(earlier, *named, python=python))
            stack.enter_context(usage.watch(servers[TIDAL]))
            found = {}
            measured = every_system.measure(bench, servers, artefacts.sources, size.systems, size.streams, flame)
            for system, cells in measured:
                found[system] = cells
                outcome.keep_system(report, system, cells)
                report.save(json)
        outcome.add_systems(report, found)
    # With an earlier server beside it, its CPU time counts as other work.
    report.measured["usage"] = {"server": usage.server, "others": usage.others}
    used = [["server", f"{usage.server:.0%}"], ["load and other work", f"{usage.others:.0%}"]]
    report.add_table("share of the cores that was used", ["", "cores"], used)
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))


def _generator() -> Generator:
    try:
        return PerfAnalyzerLoad(perf_analyzer.find(cache_folder()))
    except perf_analyzer.NoPerfAnalyzer:
        return ClientLoad()


def _against_bare(
    report: Report, against: BareBench, artefacts: RequestPathArtefacts, size: Size, json: Path | None
) -> None:
    """Compare with bare models; what was measured is written after each engine, since all of them take most of an hour.

    A precision is left out where it was not within its tolerance on this processor, and `auto` where it is another one.
    """
    make = systems.system_requests(models.ARLO, artefacts.sources)
    outcome.add_free(
        report, against.compare(models.ARLO, make, size.free, space=size.free_space, with_floors=size.floors)
    )
    report.save(json)
    longer = BareBench(replace(against.bench, seconds=_REAL * size.seconds), against.server, against.repository)
    compared = report.measured["precisions"] = dict[str, str]()
    for precision in size.precisions:
        model = real_model(precision)
        version = ModelEntry(artefacts.real / model).latest()
        if version is None:
            compared[precision] = "not published: not within its tolerance"
            continue
        manifest = load_arlo_manifest(version)
        compared[precision] = manifest.precision
        if manifest.precision in compared.keys() - {precision}:
            continue
        tokenizer = version / manifest.tokenizer.file
        found = longer.compare(
            model,
            systems.texts(model, tokenizer, systems.mixed),
            size.real,
            space=size.real_space,
            lone=systems.texts(model, tokenizer, systems.lone),
        )
        name = precision if precision == manifest.precision else f"{precision}: {manifest.precision}"
        outcome.add_real(report, name, found, claimed=precision == CLAIMED)
        report.save(json)


if __name__ == "__main__":
    typer.run(main)
