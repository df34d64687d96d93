"""Queries per second of full models and of shared passes, measured alternately with waves of the same shape."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.pets.systems import PARS, SEQS, FullForm
from benchmarks.pets.waves import Waves, WaveShape, make_waves, run_waves
from benchmarks.report import progress
from benchmarks.texts import TextMaker
from tidal.server.child import RunningServer

TIDAL = "PetS"
# Shape of the waves of the search, by system.
_SEARCHED = {SEQS: WaveShape(32, 1, 16), PARS: WaveShape(16, 1, 16)}
_MOST_WAVES = 400


@dataclass(frozen=True, slots=True)
class ThroughputCase:
    """One measurement.

    Attributes:
        name: Name of the case.
        tasks: Names of the tasks.
        shape: Shape of a wave.
        models: Name of the model by system.
    """

    name: str
    tasks: tuple[str, ...]
    shape: WaveShape
    models: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ThroughputSize:
    """Number of rounds, and approximate seconds per system and round."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ThroughputOutcome:
    """Results of a case by system and round."""

    case: ThroughputCase
    found: Mapping[str, Sequence[Waves]]

    def per_second(self, system: str) -> float:
        """Return the median over the rounds of the queries per second."""
        return statistics.median(each.per_second for each in self.found[system])

    def ratio(self, over: str) -> float:
        """Return the median over the rounds of the ratio of PetS to another system, in queries per second."""
        pairs = zip(self.found[TIDAL], self.found[over], strict=True)
        return statistics.median(ours.per_second / theirs.per_second for ours, theirs in pairs)

    def latency(self, system: str, percent: float) -> float:
        """Return the median over the rounds of a percentile of the latency in ms."""
        return statistics.median(each.percentile(percent) for each in self.found[system])

    @property
    def failed(self) -> int:
        """Number of failed requests of all systems."""
        return sum(each.failed for results in self.found.values() for each in results)


def fastest_forms(
    server: RunningServer, forms: Mapping[str, FullForm], tasks: Sequence[str], maker: TextMaker, seconds: float
) -> tuple[dict[str, str], list[list[str]]]:
    """Find the fastest form of each system, on other texts than those measured later.

    Models are loaded one at a time.

    Returns:
        Name of the fastest model by system, and a table row per form.
    """
    speeds: dict[str, float] = {}
    sizes: dict[str, float] = {}
    of_system = Counter(form.system for form in forms.values())
    for name, form in forms.items():
        if of_system[form.system] == 1:
            continue  # nothing to choose from
        progress(f"loading {name}: {form.system}, {form.label}")
        before = set(_processes(server))
        server.control.load(name, None)
        speeds[name] = _timed(server, name, tasks, _SEARCHED[form.system], maker, seconds).per_second
        # Processes of the previous form may still be running.
        started = [process for pid, process in _processes(server).items() if pid not in before]
        sizes[name] = float(sum(process.memory_full_info().pss for process in started))
        server.control.unload(name)
    best = {
        system: max((name for name in forms if forms[name].system == system), key=lambda name: speeds.get(name, 0.0))
        for system in of_system
    }
    rows = [
        [
            form.system,
            form.label,
            str(_SEARCHED[form.system].tasks),
            f"{speeds[name]:.0f}" if name in speeds else "not searched",
            f"{sizes[name] / (1 << 20):.0f}" if name in sizes else "",
            "yes" if best[form.system] == name else "",
        ]
        for name, form in forms.items()
    ]
    return best, rows


def measure(server: RunningServer, case: ThroughputCase, maker: TextMaker, size: ThroughputSize) -> ThroughputOutcome:
    """Measure the rounds of a case, with the systems in alternating order and new texts for each."""
    found: dict[str, list[Waves]] = {system: [] for system in case.models}
    order = list(case.models)
    for turn in range(size.rounds):
        shift = turn % len(order)
        for system in order[shift:] + order[:shift]:
            waves = _timed(server, case.models[system], case.tasks, case.shape, maker, size.seconds)
            if waves.failed:
                raise SystemExit(f"{case.name}, {system}: {waves.failed} requests failed: {waves.first_error}")
            found[system].append(waves)
    ratios = ", ".join(
        f"{system} {statistics.median(w.per_second for w in each):.0f}/s" for system, each in found.items()
    )
    progress(f"{case.name}: {ratios}")
    return ThroughputOutcome(case, found)


def _timed(
    server: RunningServer, model: str, tasks: Sequence[str], shape: WaveShape, maker: TextMaker, seconds: float
) -> Waves:
    """Send waves for about `seconds`; their number is estimated from a few first ones."""
    first = run_waves(server.grpc, model, make_waves(maker, tasks, shape, 4))
    if first.failed:
        return first
    count = max(4, min(_MOST_WAVES, round(seconds * first.per_second / (shape.tasks * shape.batch))))
    return run_waves(server.grpc, model, make_waves(maker, tasks, shape, count), warm=0)


def _processes(server: RunningServer) -> dict[int, psutil.Process]:
    """Return the processes of the server by pid: tritonserver, and one per instance of a Python model."""
    process = psutil.Process(server.state.server_pid)
    return {each.pid: each for each in (process, *process.children(recursive=True))}
