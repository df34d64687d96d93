"""Measure every system in every round; results are stored in a file, from which an interrupted run continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.otas.live.artefacts import LiveTask
from benchmarks.otas.live.load import OtasLoad, make_load, shape
from benchmarks.otas.live.outcome import OtasOutcome
from benchmarks.otas.live.repository import SIZES, fixed_model
from benchmarks.otas.live.switching import unload
from benchmarks.otas.live.systems import SYSTEMS, TOME, VPT, OtasBench
from benchmarks.report import progress
from tidal.simulator.otas import QueryType

# The trace that is measured, and the one that fixed γ are chosen on: seeds of 0 to 59 whose drawn rates had to be moved
# least to have bounds and mean.
MEASURED_SHAPE, TUNING_SHAPE = 55, 33
# Seeds of the arrivals that are measured lie above that of the tuning.
_TUNING_SEED, _FIRST_SEED = 1, 1000


@dataclass(frozen=True, slots=True)
class OtasSize:
    """Extent of the measurement.

    Attributes:
        rounds: Number of rounds.
        seconds: Duration of the trace, in seconds.
        tuning_s: Duration of the trace on which fixed γ are chosen, in seconds.
        capacity_s: Duration of each measurement of a throughput, in seconds.
        scales: Factors on the load; all systems are measured at each.
        searched: Whether the best fixed γ are searched on that trace; else those closest to 0 are used, which full runs
            chose.
    """

    rounds: int
    seconds: int
    tuning_s: int
    capacity_s: float
    scales: tuple[float, ...]
    searched: bool


FULL = OtasSize(rounds=3, seconds=16, tuning_s=8, capacity_s=4.0, scales=(1.0, 0.8, 1.2), searched=True)
QUICK = OtasSize(rounds=1, seconds=6, tuning_s=6, capacity_s=1.0, scales=(1.0,), searched=False)


@dataclass(slots=True)
class OtasRound:
    """One round: throughput of γ 0 in queries per second, and the outcome of every system by load and name."""

    capacity: float
    outcomes: dict[str, dict[str, OtasOutcome]] = field(default_factory=dict)


@dataclass(slots=True)
class OtasRun:
    """Results of a run.

    Attributes:
        throughputs: Throughput of each model size in queries per second, from fast to accurate.
        tuning: Share of all utility that each fixed γ earned on the tuning trace, by load and γ; None if not searched.
        rounds: Rounds that have begun.
    """

    throughputs: tuple[float, ...] = ()
    tuning: dict[str, dict[int, float | None]] = field(default_factory=dict)
    rounds: list[OtasRound] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write the results."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> OtasRun:
        """Read the results that `save` wrote."""
        found = json.loads(file.read_text())
        tuning = {
            scale: {int(gamma): share for gamma, share in each.items()} for scale, each in found["tuning"].items()
        }
        rounds = [
            OtasRound(
                each["capacity"],
                {
                    scale: {system: OtasOutcome.read(outcome) for system, outcome in systems.items()}
                    for scale, systems in each["outcomes"].items()
                },
            )
            for each in found["rounds"]
        ]
        return cls(tuple(found["throughputs"]), tuning, rounds)

    def gamma(self, system: str, scale: float) -> int:
        """Return the γ of a system with one fixed γ at a load."""
        if system not in (TOME, VPT):
            return 0
        of_kind = {gamma: share for gamma, share in self.tuning[str(scale)].items() if (gamma < 0) == (system == TOME)}
        return max(of_kind, key=lambda gamma: of_kind[gamma] or 0.0)


@dataclass(frozen=True)
class OtasRounds:
    """Measures everything that is not in the file of results.

    Args:
        bench: Server with the models of OTAS and of γ 0 loaded.
        types: Types of queries.
        tasks: Images of the tasks.
        gammas: List of γ of the model.
        size: Extent of the measurement.
        roughly: Estimated throughput of γ 0, in queries per second.
        kept: File of the results.
    """

    bench: OtasBench
    types: Sequence[QueryType]
    tasks: Sequence[LiveTask]
    gammas: Sequence[int]
    size: OtasSize
    roughly: float
    kept: Path

    def run(self) -> OtasRun:
        """Run all measurements."""
        run = OtasRun.read(self.kept) if self.kept.exists() else OtasRun()
        if run.rounds:
            progress(f"going on after {sum(len(each.outcomes) for each in run.rounds)} loads of {self.kept}")
        if not run.throughputs:
            run.throughputs = self._throughputs()
            run.save(self.kept)
        if not run.tuning:
            run.tuning = self._tune()
            run.save(self.kept)
        chosen = {run.gamma(system, scale) for system in (TOME, VPT) for scale in self.size.scales}
        for gamma in sorted(chosen):
            self.bench.server.control.load(fixed_model(gamma), None)
        for turn in range(self.size.rounds):
            if turn == len(run.rounds):
                run.rounds.append(OtasRound(self._capacity(fixed_model(0), turn)))
            for number, scale in enumerate(self.size.scales):
                self._measure(run, turn, scale, len(self.size.scales) * turn + number)
        return run

    def load(self, rates: Sequence[float], capacity: float, seed: int) -> OtasLoad:
        """Return queries at rates relative to a capacity."""
        return make_load([capacity * rate for rate in rates], self.types, self.tasks, seed)

    def measured_load(self, run: OtasRun, turn: int, scale: float) -> OtasLoad:
        """Return the load of a round."""
        rates = [scale * rate for rate in shape(self.size.seconds, MEASURED_SHAPE)]
        return self.load(rates, run.rounds[turn].capacity, _FIRST_SEED + turn)

    def _measure(self, run: OtasRun, turn: int, scale: float, shift: int) -> None:
        done = run.rounds[turn].outcomes.setdefault(str(scale), {})
        load = self.measured_load(run, turn, scale)
        # Each system is first in some round, and has different predecessors.
        order = [SYSTEMS[(place + shift) % len(SYSTEMS)] for place in range(len(SYSTEMS))]
        for system in order if turn % 2 == 0 else reversed(order):
            if system in done:
                continue
            gamma = run.gamma(system, scale)
            progress(f"round {turn + 1} of {self.size.rounds}, load {scale:g}: {len(load)} queries to {system}")
            done[system] = self.bench.measure(system, load, gamma=gamma, throughputs=run.throughputs)
            run.save(self.kept)

    def _capacity(self, model: str, seed: int) -> float:
        like = self.load([1.0] * 3, max(self.roughly, 20.0), seed)
        found = self.bench.capacity(model, like, roughly=self.roughly, seconds=self.size.capacity_s)
        progress(f"{model} answers {found:.0f} queries a second")
        return found

    def _throughputs(self) -> tuple[float, ...]:
        found = []
        for model in SIZES:
            self.bench.server.control.load(model, None)
            found.append(self._capacity(model, _TUNING_SEED))
            unload(self.bench.server.control, [model])
        return tuple(found)

    def _tune(self) -> dict[str, dict[int, float | None]]:
        """Measure every fixed γ on the tuning trace, if they are searched."""
        below, above = ([gamma for gamma in self.gammas if gamma < 0], [gamma for gamma in self.gammas if gamma > 0])
        if not self.size.searched:
            return {str(scale): {max(below): None, min(above): None} for scale in self.size.scales}
        capacity = self._capacity(fixed_model(0), _TUNING_SEED)
        rates = shape(self.size.tuning_s, TUNING_SHAPE)
        found: dict[str, dict[int, float | None]] = {str(scale): {} for scale in self.size.scales}
        for gamma in (*below, *above):
            model, shares = fixed_model(gamma), list[float]()
            self.bench.server.control.load(model, None)
            for scale in self.size.scales:
                load = self.load([scale * rate for rate in rates], capacity, _TUNING_SEED)
                outcome = self.bench.measure_model(model, load)
                shares.append(outcome.utility / outcome.offered)
                found[str(scale)][gamma] = shares[-1]
            reported = [f"{share:.1%} at load {scale:g}" for scale, share in zip(self.size.scales, shares, strict=True)]
            progress(f"γ {gamma} earns {', '.join(reported)}")
            unload(self.bench.server.control, [model])
        return found
