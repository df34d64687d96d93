"""Measure every system at every load; each result is stored at once, and an interrupted run continues from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.otas.live import traces
from benchmarks.otas.live.artefacts import LiveTask
from benchmarks.otas.live.load import OtasLoad, make_load
from benchmarks.otas.live.outcome import OtasOutcome
from benchmarks.otas.live.repository import SIZES, fixed_model
from benchmarks.otas.live.switching import unload
from benchmarks.otas.live.systems import SYSTEMS, TOME, VPT, OtasBench
from benchmarks.otas.live.traces import LiveTraces
from benchmarks.report import progress
from tidal.simulator.otas import QueryType

# Seeds of the arrivals that are measured lie above that of the tuning.
_TUNING_SEED, _FIRST_SEED = 1, 1000


@dataclass(frozen=True, slots=True)
class OtasSize:
    """Extent of the measurement.

    Attributes:
        rounds: Number of rounds.
        seconds: Seconds that are measured of each trace, from its start.
        capacity_s: Duration of each measurement of a throughput, in seconds.
        scales: Loads of `traces`; all systems are measured at each.
        searched: Whether the best fixed γ are searched on the tuning traces; else those closest to 0 are used.
    """

    rounds: int
    seconds: int
    capacity_s: float
    scales: tuple[float, ...]
    searched: bool


#: One round: 35 runs of 2 minutes, and 30 of half a minute to choose the fixed γ, are an hour and a half.
FULL = OtasSize(rounds=1, seconds=traces.MEASURED_S, capacity_s=4.0, scales=traces.LOADS, searched=True)
QUICK = OtasSize(rounds=1, seconds=8, capacity_s=1.0, scales=(1.4,), searched=False)


@dataclass(slots=True)
class OtasRound:
    """One round: by load, the throughput of γ 0 in queries per second and the outcome of every system."""

    capacities: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, dict[str, OtasOutcome]] = field(default_factory=dict)


@dataclass(slots=True)
class OtasRun:
    """Results of a run.

    Attributes:
        throughputs: Throughput of each model size in queries per second, from fast to accurate.
        tuning_capacity: Throughput of γ 0 that the loads on the tuning traces are shares of; None: not measured.
        tuning: Share of all utility that each fixed γ earned on the tuning trace, by load and γ; None if not searched.
        rounds: Rounds that have begun.
    """

    throughputs: tuple[float, ...] = ()
    tuning_capacity: float | None = None
    tuning: dict[str, dict[int, float | None]] = field(default_factory=dict)
    rounds: list[OtasRound] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write the results; an interruption leaves those that were there or these."""
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(asdict(self)))
        aside.replace(file)

    @classmethod
    def read(cls, file: Path) -> OtasRun:
        """Read the results that `save` wrote."""
        found = json.loads(file.read_text())
        tuning = {
            scale: {int(gamma): share for gamma, share in each.items()} for scale, each in found["tuning"].items()
        }
        rounds = [
            OtasRound(
                each["capacities"],
                {
                    scale: {system: OtasOutcome.read(outcome) for system, outcome in systems.items()}
                    for scale, systems in each["outcomes"].items()
                },
            )
            for each in found["rounds"]
        ]
        return cls(tuple(found["throughputs"]), found["tuning_capacity"], tuning, rounds)

    def gamma(self, system: str, scale: float) -> int:
        """Return the γ of a system with one fixed γ at a load."""
        if system not in (TOME, VPT):
            return 0
        of_kind = {gamma: share for gamma, share in self.tuning[str(scale)].items() if (gamma < 0) == (system == TOME)}
        return max(of_kind, key=lambda gamma: of_kind[gamma] or 0.0)

    @property
    def measured(self) -> int:
        """Number of systems' runs, over all loads and rounds."""
        return sum(len(systems) for each in self.rounds for systems in each.outcomes.values())


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
        rates: Rates by second of every load.
    """

    bench: OtasBench
    types: Sequence[QueryType]
    tasks: Sequence[LiveTask]
    gammas: Sequence[int]
    size: OtasSize
    roughly: float
    kept: Path
    rates: LiveTraces = field(default_factory=traces.read)

    def run(self) -> OtasRun:
        """Run all measurements; the results are stored after each."""
        run = OtasRun.read(self.kept) if self.kept.exists() else OtasRun()
        if run.measured:
            progress(f"continuing after {run.measured} runs, which are in {self.kept}")
        if not run.throughputs:
            run.throughputs = self._throughputs()
            run.save(self.kept)
        self._tune(run)
        chosen = {run.gamma(system, scale) for system in (TOME, VPT) for scale in self.size.scales}
        for gamma in sorted(chosen):
            self.bench.server.control.load(fixed_model(gamma), None)
        for turn in range(self.size.rounds):
            if turn == len(run.rounds):
                run.rounds.append(OtasRound())
            for scale in self.size.scales:
                self._measure(run, turn, scale)
        return run

    def load(self, rates: Sequence[float], capacity: float, seed: int) -> OtasLoad:
        """Return queries at rates relative to a capacity."""
        return make_load([capacity * rate for rate in rates], self.types, self.tasks, seed)

    def measured_load(self, run: OtasRun, turn: int, scale: float) -> OtasLoad:
        """Return the queries of a load in a round, whose throughput at γ 0 is known."""
        rates = self.rates.measured[scale].rates[: self.size.seconds]
        return self.load(rates, run.rounds[turn].capacities[str(scale)], _FIRST_SEED + self._number(turn, scale))

    def _number(self, turn: int, scale: float) -> int:
        """Return the number of a load's measurement among all, from 0."""
        return len(self.size.scales) * turn + self.size.scales.index(scale)

    def _measure(self, run: OtasRun, turn: int, scale: float) -> None:
        done = run.rounds[turn].outcomes.setdefault(str(scale), {})
        if len(done) == len(SYSTEMS):
            return
        if str(scale) not in run.rounds[turn].capacities:
            number = self._number(turn, scale)
            run.rounds[turn].capacities[str(scale)] = self._capacity(fixed_model(0), number)
            run.save(self.kept)
        load = self.measured_load(run, turn, scale)
        for system in self._order(turn, scale):
            if system in done:
                continue
            gamma = run.gamma(system, scale)
            progress(f"round {turn + 1} of {self.size.rounds}, load {scale:g}: {len(load)} queries to {system}")
            done[system] = self.bench.measure(system, load, gamma=gamma, throughputs=run.throughputs)
            run.save(self.kept)

    def _order(self, turn: int, scale: float) -> list[str]:
        """Return the systems so that each load begins with another one, and predecessors differ."""
        number = self._number(turn, scale)
        order = SYSTEMS[::-1] if number % 2 else SYSTEMS
        return [order[(place + number) % len(order)] for place in range(len(order))]

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

    def _tune(self, run: OtasRun) -> None:
        """Measure every fixed γ on the tuning traces, if they are searched."""
        below, above = ([gamma for gamma in self.gammas if gamma < 0], [gamma for gamma in self.gammas if gamma > 0])
        if not self.size.searched:
            run.tuning = {str(scale): {max(below): None, min(above): None} for scale in self.size.scales}
            return
        if run.tuning_capacity is None:
            run.tuning_capacity = self._capacity(fixed_model(0), _TUNING_SEED)
            run.save(self.kept)
        for gamma in (*below, *above):
            left = [scale for scale in self.size.scales if gamma not in run.tuning.get(str(scale), {})]
            if not left:
                continue
            model = fixed_model(gamma)
            self.bench.server.control.load(model, None)
            for scale in left:
                load = self.load(self.rates.tuning[scale].rates, run.tuning_capacity, _TUNING_SEED)
                outcome = self.bench.measure_model(model, load)
                share = outcome.utility / outcome.offered
                run.tuning.setdefault(str(scale), {})[gamma] = share
                run.save(self.kept)
                progress(f"γ {gamma} earns {share:.1%} at load {scale:g}")
            unload(self.bench.server.control, [model])
