"""`python -m benchmarks.client_cost [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.client_cost.calls import SYSTEMS
from benchmarks.client_cost.measure import Blocks, Cost, asyncio_cost, blocking_cost
from benchmarks.client_cost.plot import plot
from benchmarks.client_cost.server import answering
from benchmarks.report import Claim, Report, progress

_IN_FLIGHT = 32
LONE, LOADED = "one in flight", f"asyncio, {_IN_FLIGHT} in flight"


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and shorter rounds: 20 seconds, not 2 minutes.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure the CPU time of the clients per call; the server does no work, so these are figures of clients only."""
    report = Report("client_cost", quick)
    costs = measure(Blocks(3, 320) if quick else Blocks(9, 1280))
    conclude(report, costs)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def measure(blocks: Blocks) -> dict[str, dict[str, Cost]]:
    """Return the cost of each transport with one call in flight, and with many."""
    with answering() as addresses:
        lone, loaded = dict[str, Cost](), dict[str, Cost]()
        for protocol, location in addresses.items():
            progress(f"blocking calls over {protocol}")
            lone[protocol] = blocking_cost(protocol, location, blocks)
            for in_flight, costs, name in ((1, lone, f"{protocol}_aio"), (_IN_FLIGHT, loaded, protocol)):
                progress(f"asyncio calls over {protocol}, {in_flight} in flight")
                costs[name] = asyncio.run(asyncio_cost(protocol, location, blocks, in_flight=in_flight))
    return {LONE: lone, LOADED: loaded}


def conclude(report: Report, costs: Mapping[str, Mapping[str, Cost]]) -> None:
    """Add the tables, claims and measurements of all costs to the report."""
    report.measured.update({case: {name: cost.rounds for name, cost in found.items()} for case, found in costs.items()})
    for name, cost in costs[LONE].items():
        note = f"{cost.median_us(SYSTEMS[0]):.0f} against {cost.median_us(SYSTEMS[1]):.0f} µs, rounds {_range(cost)}"
        claim = Claim(f"client_added_us_per_call[{name}]", "<= 50", statistics.median(cost.added_us), note=note)
        report.claims.append(claim)
    for name, cost in costs[LOADED].items():
        note = f"rounds {min(cost.per_second):.0f} to {max(cost.per_second):.0f}"
        rate = statistics.median(cost.per_second)
        report.claims.append(Claim(f"asyncio_calls_per_s_per_core[{name}]", ">= 2000", rate, note=note))
    for case, found in costs.items():
        rows = [
            [
                name,
                *(f"{cost.median_us(system):.0f}" for system in SYSTEMS),
                f"{statistics.median(cost.added_us):.0f} ({_range(cost)})",
            ]
            for name, cost in found.items()
        ]
        columns = ["transport", *(f"{system} µs" for system in SYSTEMS), "added (rounds)"]
        report.add_table(f"CPU time per call of the client's process, {case}, medians", columns, rows)


def _range(cost: Cost) -> str:
    return f"{min(cost.added_us):.0f} to {max(cost.added_us):.0f}"


if __name__ == "__main__":
    typer.run(main)
