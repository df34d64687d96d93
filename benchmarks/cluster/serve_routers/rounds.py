"""Measurements of systems that run side by side: the others are stopped meanwhile where they would use the cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.cluster.serve_routers.loads import Load, Loads
from benchmarks.cluster.serve_routers.processor import Processor
from benchmarks.cluster.serve_routers.systems import System
from benchmarks.encoders.processes import paused
from benchmarks.report import progress

# A system that goes on after a pause has timers that are over. What it is sent before it is measured:
_RESUMED_S, _WARM_IN_FLIGHT, _WARM_S = 0.3, 8, 0.3


@dataclass(frozen=True)
class Cell:
    """A measurement.

    Attributes:
        per_second: Answers per second.
        p50_ms: Median latency in ms.
        p98_ms: 98th percentile of the latency in ms.
        failed: Number of failed queries.
        error: Message of a failed query; "" if none failed.
        processor: Shares of the cores.
        cpu_ms: CPU time of the system per answer, in ms.
    """

    per_second: float
    p50_ms: float
    p98_ms: float
    failed: int
    error: str
    processor: Processor
    cpu_ms: float

    def kept(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Compared:
    """A system in the rounds.

    Attributes:
        closed: The system with the settings that answer most per second.
        lone: The system with the settings that answer a lone query the soonest.
    """

    closed: System
    lone: System


@dataclass(frozen=True)
class Measuring:
    """Measures one system at a time.

    Attributes:
        loads: Makes loads.
        pausable: Processes of the systems that are stopped while another is measured, with those that they started.
    """

    loads: Loads
    pausable: Sequence[int]

    def cell(self, system: System, load: Load) -> Cell:
        """Measure a system under a load."""
        with paused(pid for pid in self.pausable if pid not in system.pids):
            time.sleep(_RESUMED_S)
            system.prepare()
            system.send(self.loads.closed(in_flight=_WARM_IN_FLIGHT, seconds=_WARM_S, warm_s=0.0, seed=0))
            processor = Processor()
            with processor.watch(system.pids, system.part):
                result = system.send(load)
        latencies = result.latencies_ms if len(result.latencies_ms) else np.array([np.inf])
        p50, p98 = (float(np.percentile(latencies, share)) for share in (50, 98))
        used_s = sum(processor.parts.values()) * processor.cores
        cpu_ms = 1e3 * used_s / max(result.per_second, 1e-9)
        return Cell(result.per_second, p50, p98, result.failed, result.error, processor, cpu_ms)


@dataclass(frozen=True)
class Case:
    """Times of the devices.

    Attributes:
        name: Name of the case.
        stretch: Factor on the times of the profile.
        without: Names of the systems that are not measured.
    """

    name: str
    stretch: float
    without: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """Rounds, loads and their lengths.

    Attributes:
        rounds: Number of rounds.
        in_flight: Queries in flight of closed loops.
        closed_s: Length of a closed loop in seconds.
        rate: Queries per second of open loops.
        open_s: Length of an open loop in seconds.
    """

    rounds: int
    in_flight: int
    closed_s: float
    rate: float
    open_s: float


#: The cells of a round of a case, by system: a closed and an open loop.
Round = Mapping[str, tuple[Cell, Cell]]


def measure_rounds(
    measuring: Measuring,
    systems: Mapping[str, Compared],
    cases: Sequence[Case],
    plan: Plan,
    stretch_to: Callable[[float], None],
) -> dict[str, list[Round]]:
    """Measure all systems in alternation; returns the rounds by case.

    Args:
        measuring: Measures a system.
        systems: Compared systems by name.
        cases: Cases to measure.
        plan: Rounds, loads and their lengths.
        stretch_to: Sets the factor on the times of all devices.
    """
    found: dict[str, list[Round]] = {case.name: [] for case in cases}
    for at in range(plan.rounds):
        for number, case in enumerate(cases):
            stretch_to(case.stretch)
            seed = 100 * (at + 1) + number
            closed = measuring.loads.closed(in_flight=plan.in_flight, seconds=plan.closed_s, warm_s=_WARM_S, seed=seed)
            open_ = measuring.loads.poisson(plan.rate, seconds=plan.open_s, seed=seed)
            names = [name for name in systems if name not in case.without]
            cells: dict[str, tuple[Cell, Cell]] = {}
            shift = (at + number) % len(names)  # so that each system goes first in some round
            for name in names[shift:] + names[:shift]:
                progress(f"round {at + 1} of {plan.rounds}, {case.name}: {name}")
                of = systems[name]
                cells[name] = measuring.cell(of.closed, closed), measuring.cell(of.lone, open_)
            found[case.name].append({name: cells[name] for name in names})
    return found
