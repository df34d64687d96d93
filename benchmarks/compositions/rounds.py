"""What is measured of cascades that differ in how their levels run: rounds of all of them in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.compositions.levels import ONE_ENGINE, System
from benchmarks.report import progress
from benchmarks.tabi import crowd, serial
from benchmarks.tabi.crowd import Crowd
from benchmarks.tabi.serial import Cell
from benchmarks.tabi.tasks import Queries
from tidal.server.child import RunningServer
from tidal_client.load import text_inputs


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: rounds, queries in each, of them those of a load, seconds of its capacity, and loads as
    shares of what the cascade on one engine a level can answer."""

    rounds: int
    queries: int
    alone: int
    capacity_s: float
    loads: tuple[float, ...]


FULL = Size(rounds=3, queries=400, alone=120, capacity_s=3, loads=(0.4, 0.7))
QUICK = Size(rounds=2, queries=120, alone=40, capacity_s=1.5, loads=(0.7,))


@dataclass(slots=True)
class Run:
    """What rounds gave, each by system: one query at a time, and by load under Poisson arrivals."""

    alone: list[dict[str, Cell]] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    loads: dict[float, list[dict[str, Crowd]]] = field(default_factory=dict)


def measure(server: RunningServer, systems: Sequence[System], queries: Queries, size: Size) -> Run:
    """Measure every round; each has texts that no other has.

    Args:
        server: with every system's cascade loaded.
        systems: what is compared.
        queries: `size.rounds` times `size.queries`.
        size: how much to measure.
    """
    run = Run(loads={load: [] for load in size.loads})
    models = {system.name: system.model for system in systems}
    inputs = text_inputs([text for (text,) in queries.texts])
    names = list(models)
    for turn in range(size.rounds):
        first = turn * size.queries
        rows = list(range(first, first + size.alone))
        progress(f"round {turn + 1} of {size.rounds}: {size.alone} queries one at a time, {len(models)} systems")
        run.alone.append(serial.measure(server, models, set(models), queries, rows, turn=turn))
        sent = inputs[first + size.alone : first + size.queries]
        roughly = 1e3 / run.alone[-1][ONE_ENGINE].mean_ms
        capacity = crowd.capacity(server, models[ONE_ENGINE], sent, roughly=roughly, seconds=size.capacity_s)
        run.capacities.append(capacity)
        for load in size.loads:
            progress(f"round {turn + 1}: {load:.0%} of {capacity:.0f}/s, Poisson")
            shift = turn % len(names)
            count = len(sent)
            found = {
                name: crowd.measure(server, models[name], sent, rate=load * capacity, count=count, seed=turn)
                for name in names[shift:] + names[:shift]
            }
            run.loads[load].append({name: found[name] for name in names})
    return run
