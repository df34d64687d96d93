"""A task's rounds, stored in a file after each round: an interrupted run resumes with the next round."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.report import progress
from benchmarks.tabi import crowd, serial
from benchmarks.tabi.artefacts import TaskArtefacts
from benchmarks.tabi.crowd import OpenLoopResult
from benchmarks.tabi.repository import ServedModels
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.variants import LARGE
from tidal.server.child import RunningServer
from tidal_client.load import text_inputs

# Rate of the open loop, as a share of the large model's capacity.
LOAD = 0.70
_FIRST_SEED = 1000


@dataclass(frozen=True, slots=True)
class TabiSize:
    """Size of the benchmark.

    Attributes:
        rounds: Number of rounds.
        queries: Queries per system and round, one at a time.
        requests: Requests of an open loop.
        capacity_s: Time to measure the capacity, seconds.
        offline: Queries of the sweeps.
        held_out: Held-out queries that choose the voting ensemble.
        equality: Queries whose route is computed again.
        packing_s: Time for each number of copies, seconds.
    """

    rounds: int
    queries: int
    requests: int
    capacity_s: float
    offline: int
    held_out: int
    equality: int
    packing_s: float


FULL = TabiSize(
    rounds=3, queries=600, requests=800, capacity_s=4, offline=1000, held_out=1500, equality=500, packing_s=1
)
QUICK = TabiSize(
    rounds=2, queries=50, requests=80, capacity_s=1, offline=100, held_out=150, equality=50, packing_s=0.15
)


@dataclass(slots=True)
class TaskRun:
    """Results of a task's rounds, by round and system.

    Attributes:
        serial: One query at a time.
        capacities: Capacity of the large model in each round, queries per second.
        crowd: Poisson arrivals.
    """

    serial: list[dict[str, SerialResult]] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    crowd: list[dict[str, OpenLoopResult]] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write all results to a file."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> TaskRun:
        """Read a file written by `save`."""
        found = json.loads(file.read_text())
        alone = [{system: SerialResult(**cell) for system, cell in each.items()} for each in found["serial"]]
        crowds = [{system: OpenLoopResult(**cell) for system, cell in each.items()} for each in found["crowd"]]
        return cls(alone, found["capacities"], crowds)


def measure_task(
    server: RunningServer,
    artefacts: TaskArtefacts,
    served: ServedModels,
    cascades: set[str],
    crowds: list[str],
    size: TabiSize,
    kept: Path,
) -> TaskRun:
    """Measure every round that is not stored yet.

    Args:
        server: Running server with the task's models loaded.
        artefacts: Artefacts of the task.
        served: Served models of the task.
        cascades: Names of the systems that return the level.
        crowds: Names of the systems to measure under Poisson arrivals too.
        size: Size of the benchmark.
        kept: File of the finished rounds.
    """
    run = TaskRun.read(kept) if kept.exists() else TaskRun()
    dev = artefacts.split.dev
    order = np.random.default_rng(_FIRST_SEED).permutation(len(dev)).tolist()
    inputs = text_inputs(*([list(column) for column in zip(*dev.texts, strict=True)]))
    for round_number in range(len(run.crowd), size.rounds):
        count = min(size.queries, len(dev))
        rows = [order[(round_number * count + place) % len(order)] for place in range(count)]
        progress(f"{artefacts.task.name}, round {round_number + 1} of {size.rounds}: {count} queries one at a time")
        alone = serial.measure(server, served.models, cascades, dev, rows, round_number=round_number)
        seed = _FIRST_SEED + 100 * round_number
        sent = [inputs[row] for row in np.random.default_rng(seed).permutation(len(inputs)).tolist()]
        roughly = 1e3 / alone[LARGE].mean_ms
        capacity = crowd.capacity(server, served.models[LARGE], sent, roughly=roughly, seconds=size.capacity_s)
        rate = LOAD * capacity
        progress(f"{artefacts.task.name}: the large model answers {capacity:.0f}/s, Poisson arrivals at {rate:.0f}/s")
        shift = round_number % len(crowds)
        together = {
            system: crowd.measure(server, served.models[system], sent, rate=rate, count=size.requests, seed=seed)
            for system in crowds[shift:] + crowds[:shift]
        }
        run.serial.append(alone)
        run.capacities.append(capacity)
        run.crowd.append(together)
        run.save(kept)
    return run
