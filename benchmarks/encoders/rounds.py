"""Alternated rounds: in each, all systems meet the same requests, and the same other work on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.encoders.cells import Case, measure_closed, measure_open
from benchmarks.encoders.prepare import EncoderArtefacts, model_name
from benchmarks.encoders.processes import NotStarted, paused
from benchmarks.encoders.run import EncoderCell, EncoderRun
from benchmarks.encoders.search import MOST_PER_SECOND, SEEDS
from benchmarks.encoders.sides import InProcessSide, PeerSide, Side, TidalSide, warm_up
from benchmarks.encoders.source import Task
from benchmarks.encoders.starting import started
from benchmarks.encoders.systems import FASTEMBED, PEERS, TIDAL, TIDAL_GRPC
from benchmarks.encoders.workload import Rows, Traffic, Workload
from benchmarks.report import progress
from tidal.server.child import RunningServer, tidal_serve
from tidal_client.load.arrivals import poisson

# A side for one request in flight, and one for more.
_Sides = Mapping[str, tuple[Side, Side]]
_WARM_S = 0.7


@dataclass(frozen=True)
class EncoderRounds:
    """Measures all cases of a task.

    Args:
        artefacts: Prepared artefacts.
        run: Run that has the chosen settings, and receives the measurements.
        workload: Generator of requests.
        rounds: Number of rounds.
        seconds: Length of a closed loop in seconds; open loops take twice as long.
    """

    artefacts: EncoderArtefacts
    run: EncoderRun
    workload: Workload
    rounds: int
    seconds: float

    def measure(self, task: Task, cases: Sequence[Case]) -> None:
        """Measure all rounds of all cases that are not measured yet.

        Args:
            task: Task of the cases.
            cases: Cases to measure.
        """
        if all(self._done(case, at) for case in cases for at in range(self.rounds)):
            return
        with self._running(task) as sides:
            for at in range(self.rounds):
                for number, case in enumerate(cases):
                    if not self._done(case, at):
                        progress(f"round {at + 1} of {self.rounds}: {case.name}")
                        self._alternate(case, at, number, sides)

    def capacity(self, task: Task) -> float:
        """Return the requests per second of the best peer in the search."""
        return max(speed for system, speed in self.run.speeds[task].items() if system in PEERS)

    def systems(self, case: Case) -> list[str]:
        """Return the systems that a case is measured of: in open loops without those that cannot keep up."""
        task = case.traffic.task
        found = [system for system in (*PEERS, FASTEMBED) if system in self.run.forms[task]]
        if case.share:
            rate = case.share * self.capacity(task)
            found = [system for system in found if system in PEERS and self.run.speeds[task][system] > rate]
        return [TIDAL, TIDAL_GRPC, *found]

    def _done(self, case: Case, at: int) -> bool:
        cells = self.run.cells.get(case.name, {})
        return all(len(cells.get(system, [])) > at for system in self.systems(case))

    def _alternate(self, case: Case, at: int, number: int, sides: _Sides) -> None:
        send = self._load(case, seed=100 * at + number)
        order = self.systems(case)
        shift = (at + number) % len(order)  # so that each system goes first in some round
        cells = self.run.cells.setdefault(case.name, {})
        for system in order[shift:] + order[:shift]:
            rounds = cells.setdefault(system, [])
            if len(rounds) <= at:
                side = sides[system][0 if case.in_flight == 1 else 1]
                try:
                    with paused(other.process.pid for other in _others(sides, side)):
                        rounds.append(send(side))
                except (RuntimeError, OSError) as error:
                    self._drop(case.traffic.task, system, f"{case.name}: {error}")
        self.run.save()

    def _drop(self, task: Task, system: str, reason: str) -> None:
        """Leave out a peer that failed; a failure of Tidal ends the run.

        Raises:
            RuntimeError: The system is Tidal.
        """
        if system not in self.run.forms[task]:
            raise RuntimeError(f"{system} failed: {reason}")
        progress(f"{system} is left out of {task} from now on: {reason}")
        self.run.missing.setdefault(task, {})[system] = reason[:300]
        del self.run.forms[task][system]

    def _load(self, case: Case, seed: int) -> Callable[[Side], EncoderCell]:
        """Return what measures a case with the requests of a round."""
        if case.in_flight:
            requests = self._requests(case, self.seconds + _WARM_S, seed)
            given: dict[str, Any] = {"in_flight": case.in_flight, "seconds": self.seconds, "warm_s": _WARM_S}
            return lambda side: measure_closed(side, requests, **given)
        times = poisson(case.share * self.capacity(case.traffic.task), seconds=2 * self.seconds, seed=seed)
        sent = self.workload.requests(case.traffic, len(times), seed)
        return lambda side: measure_open(side, sent, times)

    def _requests(self, case: Case, seconds: float, seed: int) -> list[Rows]:
        return self.workload.requests(case.traffic, round(seconds * MOST_PER_SECOND), seed)

    @contextmanager
    def _running(self, task: Task) -> Iterator[_Sides]:
        """Run Tidal and all peers of a task with their chosen settings."""
        with ExitStack() as stack:
            progress(f"starting tidal serve and the peers of {task}")
            server = stack.enter_context(tidal_serve(self.artefacts.repository, "--model", model_name(task)))
            sides = {name: (side, side) for name, side in _tidal(server, task).items()}
            for system in list(self.run.forms.get(task, {})):
                lone, loaded = (self.run.form(task, system, lone=each) for each in (True, False))
                try:
                    first = stack.enter_context(started(lone, task, self.artefacts))
                    other = first if lone == loaded else stack.enter_context(started(loaded, task, self.artefacts))
                except NotStarted as error:
                    self._drop(task, system, str(error))
                    continue
                sides[system] = (first, other)
            self._warm_up(task, sides)
            yield sides

    def _warm_up(self, task: Task, sides: _Sides) -> None:
        requests = self.workload.requests(Traffic(task, "tweets"), round(_WARM_S * MOST_PER_SECOND), SEEDS + 1)
        for pair in sides.values():
            for side in dict.fromkeys(pair):
                warm_up(side, requests, in_flight=8, seconds=_WARM_S)


def _others(sides: _Sides, side: Side) -> set[PeerSide | InProcessSide]:
    """Return the peers that are not measured. Tidal is left running: it uses nothing while idle."""
    every = {each for pair in sides.values() for each in pair if each is not side}
    return {each for each in every if isinstance(each, PeerSide | InProcessSide)}


def _tidal(server: RunningServer, task: Task) -> dict[str, Side]:
    return {TIDAL: TidalSide(server, task), TIDAL_GRPC: TidalSide(server, task, grpc=True)}
