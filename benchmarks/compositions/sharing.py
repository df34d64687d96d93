"""Many models that share a part against as many that share nothing: memory, throughput, latency.

All systems receive the same requests, and each round restarts every system.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.kept import cache_folder
from benchmarks.report import Claim, Report, progress
from benchmarks.usage import Usage
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import AsyncClient

TIMEOUT_S = 60.0
_WARM_UP, _PAUSE_S = 20, 0.5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SharingSize:
    """Size of a comparison.

    Attributes:
        count: Number of models or tasks that receive requests.
        rounds: Number of rounds; each starts every system.
        seconds: Duration of each load, seconds; saturation is measured for half of it.
        loads: Loads as shares of the throughput of the first system.
        in_flight: Requests in flight per model under saturation.
    """

    count: int
    rounds: int
    seconds: float
    loads: tuple[float, ...]
    in_flight: int


@dataclass(frozen=True, slots=True)
class SharingWorkload:
    """The requests of a comparison.

    Attributes:
        make: Draws a query, given a random generator and a number: equal numbers draw from the same queries.
        send: Sends a query to a target under a request id and returns the answer, which is compared.
    """

    make: Callable[[random.Random, int], Any]
    send: Callable[[AsyncClient, str, Any, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class SharingSystem:
    """One way to serve the models.

    Attributes:
        description: Description in tables.
        write: Adds its models to a repository.
        served: Names of the models to serve.
        targets: Names of the models or tasks that receive requests.
        workload: The requests.
    """

    description: str
    write: Callable[[Path], None]
    served: Sequence[str]
    targets: Sequence[str]
    workload: SharingWorkload


@dataclass(slots=True)
class PoissonResult:
    """One system under Poisson arrivals over all targets; latency counts from the time at which a request was due."""

    latencies_ms: list[float] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)  # by request id
    failed: int = 0
    others: float = 0.0  # share of the cores that other work used


@dataclass(slots=True)
class SharingRound:
    """The measurements of one system in one round."""

    pss_mib: float  # of the server and all its processes, once every model has answered
    processes: int
    per_second: float  # answers under saturation
    failed: int
    loads: dict[float, PoissonResult] = field(default_factory=dict)


def compare(systems: Mapping[str, SharingSystem], size: SharingSize) -> tuple[dict[str, list[SharingRound]], float]:
    """Measure all systems alternately; return their rounds, and the rate that the loads are shares of.

    Args:
        systems: Systems by name; the first one defines the rate.
        size: Size of the comparison.
    """
    found: dict[str, list[SharingRound]] = {name: [] for name in systems}
    rate = 0.0
    for round_number in range(size.rounds):
        # The very first measurement defines the rate that loads are shares of.
        for name in systems if round_number % 2 == 0 else reversed(list(systems)):
            progress(f"round {round_number + 1} of {size.rounds}: {size.count} of {name}")
            done = _measure(systems[name], size, rate, round_number)
            rate = rate or done.per_second
            found[name].append(done)
    return found, rate


def _measure(system: SharingSystem, size: SharingSize, rate: float, round_number: int) -> SharingRound:
    named = [part for name in system.served for part in ("--model", name)]
    with tempfile.TemporaryDirectory(prefix="sharing-", dir=cache_folder()) as folder:
        system.write(Path(folder))
        with tidal_serve(Path(folder), "--exit-timeout", "3", *named) as server:
            asyncio.run(_busy(server, system, size, seconds=1.0, seed=-1, most=_WARM_UP * len(system.targets)))
            time.sleep(_PAUSE_S)
            processes = _processes(server)
            pss = sum(process.memory_full_info().pss for process in processes) / _MIB
            per_second, failed = asyncio.run(_busy(server, system, size, seconds=size.seconds / 2, seed=round_number))
            done = SharingRound(pss, len(processes), per_second, failed)
            for load in size.loads:
                usage = Usage()
                with usage.watch(server):
                    arrived = asyncio.run(
                        _arrive(server, system, load * (rate or per_second), size.seconds, round_number)
                    )
                arrived.others = usage.others
                done.loads[load] = arrived
            return done


def _processes(server: RunningServer) -> list[psutil.Process]:
    process = psutil.Process(server.state.server_pid)
    return [process, *process.children(recursive=True)]


async def _busy(
    server: RunningServer,
    system: SharingSystem,
    size: SharingSize,
    *,
    seconds: float,
    seed: int,
    most: int | None = None,
) -> tuple[float, int]:
    """Return the answers per second with a constant number of requests in flight per target, and the failures."""
    workload = system.workload
    done = failed = 0
    async with AsyncClient(server.grpc, timeout_s=TIMEOUT_S) as client:
        begin = time.perf_counter()

        async def keep_sending(name: str, draw: random.Random) -> None:
            nonlocal done, failed
            while time.perf_counter() < begin + seconds and (most is None or done + failed < most):
                try:
                    await workload.send(client, name, workload.make(draw, 1000 + seed), str(draw.random()))
                    done += 1
                except Exception:
                    failed += 1

        lanes = [(name, lane) for name in system.targets for lane in range(size.in_flight)]
        await asyncio.gather(*(keep_sending(name, random.Random(f"{seed} {name} {lane}")) for name, lane in lanes))
        return done / (time.perf_counter() - begin), failed


async def _arrive(
    server: RunningServer, system: SharingSystem, rate: float, seconds: float, seed: int
) -> PoissonResult:
    """Send requests at random times to random targets; equal seeds and rates give the same requests and draws."""
    draw = random.Random(seed)
    due = 0.0
    plan = list[tuple[float, str, Any, str]]()
    while (due := due + draw.expovariate(rate)) < seconds:
        name = draw.choice(system.targets)
        plan.append((due, name, system.workload.make(draw, 2000 + seed), f"round {seed} query {len(plan)}"))
    found = PoissonResult()
    async with AsyncClient(server.grpc, timeout_s=TIMEOUT_S) as client:
        begin = time.perf_counter() + 0.1

        async def send(due: float, name: str, query: Any, request_id: str) -> None:
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            try:
                answer = await system.workload.send(client, name, query, request_id)
            except Exception:
                found.failed += 1
                return
            found.latencies_ms.append((time.perf_counter() - begin - due) * 1e3)
            found.answers[request_id] = answer

        await asyncio.gather(*(send(*each) for each in plan))
    return found


def add_sharing(
    report: Report,
    systems: Mapping[str, SharingSystem],
    found: Mapping[str, Sequence[SharingRound]],
    rate: float,
    *,
    shared: str,
    prefix: str,
    least_same: float | None = None,
) -> None:
    """Report tables and claims: medians of the rounds, and ratios within a round to the best other system in it.

    Args:
        report: Report to extend.
        systems: Systems that were compared.
        found: Rounds by system.
        rate: Rate that the loads are shares of, requests per second.
        shared: Name of the system whose models share a part.
        prefix: Prefix of the claims' names.
        least_same: Minimum share of answers that are equal in all systems; None if they may differ.
    """
    report.add_table("systems", ["system", "description"], [[name, each.description] for name, each in systems.items()])
    rows = [
        [
            name,
            f"{statistics.median(each.pss_mib for each in rounds):.0f}",
            str(rounds[0].processes),
            f"{statistics.median(each.per_second for each in rounds):.1f}",
            str(sum(each.failed for each in rounds)),
        ]
        for name, rounds in found.items()
    ]
    columns = ["system", "MiB (PSS, all processes)", "processes", "answers/s", "failed"]
    report.add_table("memory, and throughput under saturation", columns, rows)
    mine, theirs = found[shared], [rounds for name, rounds in found.items() if name != shared]
    loads = list(mine[0].loads)
    for load in loads:
        rows = [_row(name, [each.loads[load] for each in rounds]) for name, rounds in found.items()]
        columns = ["system", "mean ms", "p50", "p98", "failed", "others"]
        report.add_table(f"Poisson arrivals over all: {load:.0%} of {rate:.1f}/s", columns, rows)

    def claim(name: str, goal: str, figure: Callable[[SharingRound], float]) -> None:
        """Add a claim about the ratio to the best other system: the lowest figure if less is better."""
        best = min if goal.startswith("<") else max
        ratios = [
            figure(own) / best(figure(rounds[round_number]) for rounds in theirs)
            for round_number, own in enumerate(mine)
        ]
        spread = f"shared / own; rounds: {min(ratios):.2f} to {max(ratios):.2f}"
        report.claims.append(Claim(f"{prefix}_{name}", goal, statistics.median(ratios), note=spread))

    claim("memory", "<= 1.0", lambda each: each.pss_mib)
    claim("answers", ">= 1.0", lambda each: each.per_second)
    for load in loads:
        claim(f"mean[{load:.0%}]", "<= 1.0", partial(_mean_ms, load))
    if least_same is not None:
        cases = [
            (round_number, load, rounds) for round_number in range(len(mine)) for load in loads for rounds in theirs
        ]
        same = min(
            _same(mine[round_number].loads[load], rounds[round_number].loads[load])
            for round_number, load, rounds in cases
        )
        goal, note = f">= {least_same:g}", "minimum share of equal answers"
        report.claims.append(Claim(f"{prefix}_same_answers", goal, same, note=note))
    lost = sum(each.failed + sum(a.failed for a in each.loads.values()) for rounds in found.values() for each in rounds)
    report.claims.append(Claim(f"{prefix}_failed", "== 0", lost))
    report.measured = {name: [asdict(each) for each in rounds] for name, rounds in found.items()}


def _row(name: str, rounds: Sequence[PoissonResult]) -> list[str]:
    figures = [(np.mean(each.latencies_ms), *np.percentile(each.latencies_ms, [50, 98])) for each in rounds]
    medians = (f"{value:.1f}" for value in np.median(figures, axis=0))
    others = f"{max(each.others for each in rounds):.0%}"
    return [name, *medians, str(sum(each.failed for each in rounds)), others]


def _mean_ms(load: float, each: SharingRound) -> float:
    return float(np.mean(each.loads[load].latencies_ms))


def _same(one: PoissonResult, other: PoissonResult) -> float:
    both = one.answers.keys() & other.answers.keys()
    same: int = sum(one.answers[each] == other.answers[each] for each in both)
    return same / max(1, len(both))
