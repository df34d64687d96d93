"""A task's rounds, kept in a file as they come: a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.report import progress
from benchmarks.tabi import crowd, serial
from benchmarks.tabi.crowd import Crowd
from benchmarks.tabi.prepare import Artefacts
from benchmarks.tabi.repository import Served
from benchmarks.tabi.serial import Cell
from benchmarks.tabi.variants import LARGE
from tidal.server.child import RunningServer
from tidal_client.load import text_inputs

# Share of the large model's own capacity at which queries come.
LOAD = 0.70
_FIRST_SEED = 1000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: rounds, queries a system in each, requests of an open loop, queries of what is computed
    offline, and queries of a task whose route is computed again."""

    rounds: int
    queries: int
    requests: int
    capacity_s: float
    offline: int
    held_out: int
    equality: int
    packing_s: float


FULL = Size(rounds=3, queries=600, requests=800, capacity_s=4, offline=1000, held_out=1500, equality=500, packing_s=1)
QUICK = Size(rounds=2, queries=50, requests=80, capacity_s=1, offline=100, held_out=150, equality=50, packing_s=0.15)


@dataclass(slots=True)
class TaskRun:
    """What a task's rounds gave: by round, and by system within it; `capacities` are the large model's, 1/s."""

    serial: list[dict[str, Cell]] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    crowd: list[dict[str, Crowd]] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write it all."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> TaskRun:
        """What `save` wrote."""
        found = json.loads(file.read_text())
        alone = [{system: Cell(**cell) for system, cell in each.items()} for each in found["serial"]]
        crowds = [{system: Crowd(**cell) for system, cell in each.items()} for each in found["crowd"]]
        return cls(alone, found["capacities"], crowds)


def measure_task(
    server: RunningServer,
    artefacts: Artefacts,
    served: Served,
    cascades: set[str],
    crowds: list[str],
    size: Size,
    kept: Path,
) -> TaskRun:
    """Measure every round that is not kept yet.

    Args:
        server: with the task's models loaded.
        artefacts: of the task.
        served: its models.
        cascades: the systems of them that say which level answered.
        crowds: the systems that are measured under Poisson arrivals too.
        size: how much to measure.
        kept: file of what is done.
    """
    run = TaskRun.read(kept) if kept.exists() else TaskRun()
    dev = artefacts.split.dev
    order = np.random.default_rng(_FIRST_SEED).permutation(len(dev)).tolist()
    inputs = text_inputs(*([list(column) for column in zip(*dev.texts, strict=True)]))
    for turn in range(len(run.crowd), size.rounds):
        count = min(size.queries, len(dev))
        rows = [order[(turn * count + place) % len(order)] for place in range(count)]
        progress(f"{artefacts.task.name}, round {turn + 1} of {size.rounds}: {count} queries one at a time")
        alone = serial.measure(server, served.models, cascades, dev, rows, turn=turn)
        seed = _FIRST_SEED + 100 * turn
        sent = [inputs[row] for row in np.random.default_rng(seed).permutation(len(inputs)).tolist()]
        roughly = 1e3 / alone[LARGE].mean_ms
        capacity = crowd.capacity(server, served.models[LARGE], sent, roughly=roughly, seconds=size.capacity_s)
        rate = LOAD * capacity
        progress(f"{artefacts.task.name}: the large model answers {capacity:.0f}/s, Poisson arrivals at {rate:.0f}/s")
        shift = turn % len(crowds)
        together = {
            system: crowd.measure(server, served.models[system], sent, rate=rate, count=size.requests, seed=seed)
            for system in crowds[shift:] + crowds[:shift]
        }
        run.serial.append(alone)
        run.capacities.append(capacity)
        run.crowd.append(together)
        run.save(kept)
    return run
