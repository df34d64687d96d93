"""Rounds over all cells, each stored in a file when it is complete, so that an interrupted run resumes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.arlo.measure import ArloCell, capacity, measure
from benchmarks.arlo.prepare import PARTITIONED as PARTITIONED_MODEL
from benchmarks.arlo.prepare import POLYMORPHIC as POLYMORPHIC_MODEL
from benchmarks.arlo.search import TunedBaselines, search
from benchmarks.arlo.systems import (
    BIN_PACKING,
    BIN_PACKING_MODEL,
    DT,
    PARTITIONED,
    POLYMORPHIC,
    ST,
    ArloCase,
    PlannedCase,
)
from benchmarks.arlo.workload import ArloWorkload
from benchmarks.report import progress
from tidal.server.child import RunningServer

OWN_MODELS = {POLYMORPHIC: POLYMORPHIC_MODEL, PARTITIONED: PARTITIONED_MODEL, BIN_PACKING: BIN_PACKING_MODEL}
# Seeds of measured cells are above those of the searches.
_FIRST_SEED = 1000
# Above the capacity of a system, an open loop measures its own duration only.
_MOST_OF_CAPACITY = 0.95
# Estimated time for warm-up, metrics and preparing a schedule.
_CELL_OVERHEAD_S = 2.0


@dataclass(slots=True)
class ArloRun:
    """Completed measurements.

    Attributes:
        tuned: Chosen parameters of the baselines.
        limits: Capacity of the partitioned systems in answers per second; higher loads are skipped.
        capacities: Answers per second by system, one mapping per round.
        cells: Results by case and system, one mapping per round.
    """

    tuned: TunedBaselines
    limits: dict[str, float]
    capacities: list[dict[str, float]] = field(default_factory=list)
    cells: list[dict[str, dict[str, ArloCell]]] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write the run to a file."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> ArloRun:
        """Read a run that `save` wrote."""
        found = json.loads(file.read_text())
        cells = [
            {case: {system: ArloCell(**cell) for system, cell in systems.items()} for case, systems in each.items()}
            for each in found["cells"]
        ]
        return cls(TunedBaselines(**found["tuned"]), found["limits"], found["capacities"], cells)

    def model(self, system: str, case: ArloCase) -> str:
        """Return the model that represents a system at a load."""
        return OWN_MODELS[system] if system in OWN_MODELS else self.tuned.models[system][str(case.percent)]

    def saturated(self, system: str, case: ArloCase) -> bool:
        """Whether a load exceeds the capacity of a partitioned system."""
        return case.base == DT and self._rate(case) > _MOST_OF_CAPACITY * self.limits.get(system, float("inf"))

    def _rate(self, case: ArloCase) -> float:
        """Return the requests per second of a load in the first round."""
        return self.capacities[0][case.base] * case.percent / 100


def measure_all(
    server: RunningServer, workload: ArloWorkload, plan: Sequence[PlannedCase], *, rounds: int, quick: bool, kept: Path
) -> ArloRun:
    """Search the parameters of the baselines, then measure every cell in every round.

    Args:
        server: Running server.
        workload: Generator of texts.
        plan: Cells of a round.
        rounds: Number of rounds.
        quick: Whether searches are shortened.
        kept: File of completed measurements; the run resumes after them.
    """
    if kept.exists():
        run = ArloRun.read(kept)
        progress(f"resuming after {len(run.cells)} rounds of {kept}")
        for model in run.tuned.names():
            server.control.load(model, None)
    else:
        run = ArloRun(search(server, workload, quick=quick), {})
        seconds = 1.5 if quick else 4
        for system in {system for planned in plan for system in planned.systems} & {PARTITIONED, BIN_PACKING}:
            run.limits[system] = capacity(server, OWN_MODELS[system], workload, seconds=seconds, seed=30)
        run.save(kept)
    while len(run.cells) < rounds:
        _round(server, workload, plan, run, turn=len(run.cells), rounds=rounds, quick=quick)
        run.save(kept)
    return run


def _round(
    server: RunningServer,
    workload: ArloWorkload,
    plan: Sequence[PlannedCase],
    run: ArloRun,
    *,
    turn: int,
    rounds: int,
    quick: bool,
) -> None:
    seed = _FIRST_SEED + 100 * turn
    capacities = {
        base: capacity(server, run.tuned.fastest[base], workload, seconds=1.5 if quick else 5, seed=seed)
        for base in (ST, DT)
    }
    run.capacities.append(capacities)
    if turn == 0:
        seconds = rounds * expected_seconds(plan, run)
        progress(
            f"ST answers {capacities[ST]:.1f}/s, DT {capacities[DT]:.1f}/s: about {seconds / 60:.0f} minutes to go"
        )
    found: dict[str, dict[str, ArloCell]] = {}
    for number, planned in enumerate(plan):
        case = planned.case
        rate = capacities[case.base] * case.percent / 100
        schedule = workload.trace(case.pattern, rate, planned.requests, seed + number)
        systems = [system for system in planned.systems if not run.saturated(system, case)]
        # The order changes, so that every system is measured first in some round, and after different ones.
        shift = (turn + number) % len(systems)
        systems = systems[shift:] + systems[:shift]
        found[str(case)] = {}
        for system in systems if turn % 2 == 0 else reversed(systems):
            progress(f"round {turn + 1} of {rounds}: {case}, {rate:.1f}/s, {system}")
            found[str(case)][system] = measure(server, run.model(system, case), schedule, workload)
    run.cells.append(found)


def expected_seconds(plan: Sequence[PlannedCase], run: ArloRun) -> float:
    """Estimate the duration of a round from the capacities of the last one."""
    total = 0.0
    for planned in plan:
        rate = run.capacities[-1][planned.case.base] * planned.case.percent / 100
        systems = [system for system in planned.systems if not run.saturated(system, planned.case)]
        total += len(systems) * (planned.requests / rate + _CELL_OVERHEAD_S)
    return total
