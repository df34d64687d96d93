"""Rounds over cascades that differ in how their levels run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.compositions.levels import ONE_ENGINE, CascadeVariant
from benchmarks.report import progress
from benchmarks.tabi import crowd, serial
from benchmarks.tabi.crowd import OpenLoopResult
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.tasks import TaskQueries
from tidal.server.child import RunningServer
from tidal_client.load import text_inputs


@dataclass(frozen=True, slots=True)
class LevelsSize:
    """Size of the measurement.

    Attributes:
        rounds: Number of rounds.
        queries: Queries per round.
        alone: Queries of these that are sent one at a time; the others are sent under load.
        capacity_s: Time to measure the capacity, seconds.
        loads: Loads as shares of the capacity with one engine per level.
    """

    rounds: int
    queries: int
    alone: int
    capacity_s: float
    loads: tuple[float, ...]


FULL = LevelsSize(rounds=3, queries=400, alone=120, capacity_s=3, loads=(0.4, 0.7))
QUICK = LevelsSize(rounds=2, queries=120, alone=40, capacity_s=1.5, loads=(0.7,))


@dataclass(slots=True)
class LevelsResult:
    """Measurements by round and system.

    Attributes:
        alone: One query at a time.
        capacities: Capacity in each round, queries per second.
        loads: Poisson arrivals, by load.
    """

    alone: list[dict[str, SerialResult]] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    loads: dict[float, list[dict[str, OpenLoopResult]]] = field(default_factory=dict)


def measure(
    server: RunningServer, systems: Sequence[CascadeVariant], queries: TaskQueries, size: LevelsSize
) -> LevelsResult:
    """Measure all rounds; each has texts of its own.

    Args:
        server: Running server with every variant loaded.
        systems: Variants to compare.
        queries: Queries, `size.rounds` times `size.queries`.
        size: Size of the measurement.
    """
    run = LevelsResult(loads={load: [] for load in size.loads})
    models = {system.name: system.model for system in systems}
    inputs = text_inputs([text for (text,) in queries.texts])
    names = list(models)
    for round_number in range(size.rounds):
        first = round_number * size.queries
        rows = list(range(first, first + size.alone))
        progress(
            f"round {round_number + 1} of {size.rounds}: {size.alone} queries one at a time, {len(models)} systems"
        )
        run.alone.append(serial.measure(server, models, set(models), queries, rows, round_number=round_number))
        sent = inputs[first + size.alone : first + size.queries]
        roughly = 1e3 / run.alone[-1][ONE_ENGINE].mean_ms
        capacity = crowd.capacity(server, models[ONE_ENGINE], sent, roughly=roughly, seconds=size.capacity_s)
        run.capacities.append(capacity)
        for load in size.loads:
            progress(f"round {round_number + 1}: {load:.0%} of {capacity:.0f}/s, Poisson")
            shift = round_number % len(names)
            count = len(sent)
            found = {
                name: crowd.measure(server, models[name], sent, rate=load * capacity, count=count, seed=round_number)
                for name in names[shift:] + names[:shift]
            }
            run.loads[load].append({name: found[name] for name in names})
    return run
