"""All five systems with engines that cost next to nothing, beside an earlier commit of the project if there is one.

Arlo is measured in both placements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.report import progress
from benchmarks.request_path import flame, models
from benchmarks.request_path.comparison import TIDAL, Cells
from benchmarks.request_path.rounds import Bench, Side
from benchmarks.request_path.systems import system_requests
from tidal.server.child import RunningServer

BEFORE = "before"
#: Number of requests in flight at which the earlier commit is measured.
COMPARED = 64
#: Systems by the names of their models.
SYSTEMS = {
    models.ARLO: "arlo",
    models.PARTITIONED: "arlo partitioned",
    models.TABI: "tabi",
    models.PETS: "pets",
    models.OTAS: "otas",
    models.FLOVER: "flover",
}


def measure(
    bench: Bench,
    servers: Mapping[str, RunningServer],
    sources: Path,
    concurrencies: Sequence[int],
    streams: Sequence[int],
    flames: Path | None,
) -> Iterator[tuple[str, Cells]]:
    """Measure system by system; the earlier commit's in alternation, at 64 in flight.

    Args:
        bench: Benchmark that sends the load.
        servers: Server of this commit, and of the earlier one if there is one.
        sources: Sources of the tiny models.
        concurrencies: Numbers of requests in flight.
        streams: Numbers of concurrent generations.
        flames: Folder of flame graphs, `<system>_<server>.svg`; None: none are recorded.

    Yields:
        Each system with its measurements by number of requests in flight and side.
    """
    for model, system in SYSTEMS.items():
        make, cells = system_requests(model, sources), Cells()
        for concurrency in streams if model == models.FLOVER else concurrencies:
            progress(f"{system}: {concurrency} in flight")
            compared = servers if concurrency == COMPARED else {TIDAL: servers[TIDAL]}
            sides = {name: Side(server, make) for name, server in compared.items()}
            cells[concurrency] = bench.alternate(sides, concurrency)
        yield system, cells
        if flames is not None:
            for name, server in servers.items():
                progress(f"{system}: flame graph, {name}")
                flame.record(bench, Side(server, make), flames / f"{system.replace(' ', '_')}_{name}.svg")
