"""Many models that share a part against as many that share nothing: memory, answers a second, latency.

What is asked is the same of every system, and each round starts every system anew.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
_WARM_UP, _SETTLE_S = 20, 0.5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        count: models, or tasks, that are asked.
        rounds: starts of each system.
        seconds: of each load; half of it where the server is kept busy.
        loads: as shares of what the first system answers.
        in_flight: requests for each model where the server is kept busy.
    """

    count: int
    rounds: int
    seconds: float
    loads: tuple[float, ...]
    in_flight: int


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked.

    Attributes:
        make: a query, given what draws it and a number: equal numbers are to draw from equal queries.
        ask: asks one of the names the query under a request id; the answer, to be compared.
    """

    make: Callable[[random.Random, int], Any]
    ask: Callable[[AsyncClient, str, Any, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class System:
    """One way to serve.

    Attributes:
        means: what it is.
        write: adds its models to a repository.
        served: names of the models to serve.
        asked: names that are asked.
        asking: how.
    """

    means: str
    write: Callable[[Path], None]
    served: Sequence[str]
    asked: Sequence[str]
    asking: Asking


@dataclass(slots=True)
class Arrived:
    """One system under Poisson arrivals, mixed over what is asked; latency counts from when a request was due."""

    latencies_ms: list[float] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)  # by request id
    failed: int = 0
    others: float = 0.0  # share of the cores that other work used


@dataclass(slots=True)
class Round:
    """What one start of one system gave."""

    pss_mib: float  # of the server and all its processes, once every model has answered
    processes: int
    per_second: float  # answers where the server is kept busy
    failed: int
    loads: dict[float, Arrived] = field(default_factory=dict)


def compare(systems: Mapping[str, System], size: Size) -> tuple[dict[str, list[Round]], float]:
    """Measure every system, in turns; their rounds, and the rate that loads are shares of."""
    found: dict[str, list[Round]] = {name: [] for name in systems}
    rate = 0.0
    for turn in range(size.rounds):
        # The first of all says what a load is a share of.
        for name in systems if turn % 2 == 0 else reversed(systems):
            progress(f"round {turn + 1} of {size.rounds}: {size.count} of {name}")
            done = _measure(systems[name], size, rate, turn)
            rate = rate or done.per_second
            found[name].append(done)
    return found, rate


def _measure(system: System, size: Size, rate: float, turn: int) -> Round:
    named = [part for name in system.served for part in ("--model", name)]
    with tempfile.TemporaryDirectory(prefix="sharing-", dir=cache_folder()) as folder:
        system.write(Path(folder))
        with tidal_serve(Path(folder), "--exit-timeout", "3", *named) as server:
            asyncio.run(_busy(server, system, size, seconds=1.0, seed=-1, most=_WARM_UP * len(system.asked)))
            time.sleep(_SETTLE_S)
            processes = _processes(server)
            pss = sum(process.memory_full_info().pss for process in processes) / _MIB
            per_second, failed = asyncio.run(_busy(server, system, size, seconds=size.seconds / 2, seed=turn))
            done = Round(pss, len(processes), per_second, failed)
            for load in size.loads:
                usage = Usage()
                with usage.watch(server):
                    arrived = asyncio.run(_arrive(server, system, load * (rate or per_second), size.seconds, turn))
                arrived.others = usage.others
                done.loads[load] = arrived
            return done


def _processes(server: RunningServer) -> list[psutil.Process]:
    process = psutil.Process(server.state.server_pid)
    return [process, *process.children(recursive=True)]


async def _busy(
    server: RunningServer, system: System, size: Size, *, seconds: float, seed: int, most: int | None = None
) -> tuple[float, int]:
    """Answers a second with some requests to each in flight all the time, and how many failed."""
    asking = system.asking
    done = failed = 0
    async with AsyncClient(server.grpc, timeout_s=TIMEOUT_S) as client:
        begin = time.perf_counter()

        async def keep_asking(name: str, draw: random.Random) -> None:
            nonlocal done, failed
            while time.perf_counter() < begin + seconds and (most is None or done + failed < most):
                try:
                    await asking.ask(client, name, asking.make(draw, 1000 + seed), str(draw.random()))
                    done += 1
                except Exception:
                    failed += 1

        lanes = [(name, lane) for name in system.asked for lane in range(size.in_flight)]
        await asyncio.gather(*(keep_asking(name, random.Random(f"{seed} {name} {lane}")) for name, lane in lanes))
        return done / (time.perf_counter() - begin), failed


async def _arrive(server: RunningServer, system: System, rate: float, seconds: float, seed: int) -> Arrived:
    """Requests at random times to random ones; equal seeds and rates give equal ones, with the same draws."""
    draw = random.Random(seed)
    due, plan = 0.0, []
    while (due := due + draw.expovariate(rate)) < seconds:
        name = draw.choice(system.asked)
        plan.append((due, name, system.asking.make(draw, 2000 + seed), f"round {seed} query {len(plan)}"))
    found = Arrived()
    async with AsyncClient(server.grpc, timeout_s=TIMEOUT_S) as client:
        begin = time.perf_counter() + 0.1

        async def ask(due: float, name: str, query: Any, request_id: str) -> None:
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            try:
                answer = await system.asking.ask(client, name, query, request_id)
            except Exception:
                found.failed += 1
                return
            found.latencies_ms.append((time.perf_counter() - begin - due) * 1e3)
            found.answers[request_id] = answer

        await asyncio.gather(*(ask(*each) for each in plan))
    return found


def add_sharing(
    report: Report,
    systems: Mapping[str, System],
    found: Mapping[str, Sequence[Round]],
    rate: float,
    *,
    shared: str,
    prefix: str,
    least_same: float | None = None,
) -> None:
    """Tables and claims: medians of the rounds, ratios within a round, against whichever other was the best in it.

    Args:
        report: that gets them.
        systems: that were compared.
        found: their rounds.
        rate: that loads are shares of.
        shared: name of the system whose models share something.
        prefix: of the claims' names.
        least_same: share of the answers that have to be equal in all systems; None where they may differ.
    """
    report.add_table("systems", ["system", "what it is"], [[name, each.means] for name, each in systems.items()])
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
    report.add_table("memory, and answers while requests to each are in flight", columns, rows)
    mine, theirs = found[shared], [rounds for name, rounds in found.items() if name != shared]
    loads = list(mine[0].loads)
    for load in loads:
        rows = [_row(name, [each.loads[load] for each in rounds]) for name, rounds in found.items()]
        columns = ["system", "mean ms", "p50", "p98", "failed", "others"]
        report.add_table(f"Poisson arrivals over all: {load:.0%} of {rate:.1f}/s", columns, rows)

    def claim(name: str, goal: str, figure: Callable[[Round], float]) -> None:
        """Against the best of the others: the least where less is better."""
        best = min if goal.startswith("<") else max
        ratios = [figure(own) / best(figure(rounds[turn]) for rounds in theirs) for turn, own in enumerate(mine)]
        spread = f"shared / own; rounds: {min(ratios):.2f} to {max(ratios):.2f}"
        report.claims.append(Claim(f"{prefix}_{name}", goal, statistics.median(ratios), note=spread))

    claim("memory", "<= 1.0", lambda each: each.pss_mib)
    claim("answers", ">= 1.0", lambda each: each.per_second)
    for load in loads:
        claim(f"mean[{load:.0%}]", "<= 1.0", lambda each, load=load: float(np.mean(each.loads[load].latencies_ms)))
    if least_same is not None:
        cases = [(turn, load, rounds) for turn in range(len(mine)) for load in loads for rounds in theirs]
        same = min(_same(mine[turn].loads[load], rounds[turn].loads[load]) for turn, load, rounds in cases)
        goal, note = f">= {least_same:g}", "least share of equal answers"
        report.claims.append(Claim(f"{prefix}_same_answers", goal, same, note=note))
    lost = sum(each.failed + sum(a.failed for a in each.loads.values()) for rounds in found.values() for each in rounds)
    report.claims.append(Claim(f"{prefix}_failed", "== 0", lost))
    report.measured = {name: [asdict(each) for each in rounds] for name, rounds in found.items()}


def _row(name: str, rounds: Sequence[Arrived]) -> list[str]:
    figures = [(np.mean(each.latencies_ms), *np.percentile(each.latencies_ms, [50, 98])) for each in rounds]
    medians = (f"{value:.1f}" for value in np.median(figures, axis=0))
    others = f"{max(each.others for each in rounds):.0%}"
    return [name, *medians, str(sum(each.failed for each in rounds)), others]


def _same(one: Arrived, other: Arrived) -> float:
    both = one.answers.keys() & other.answers.keys()
    return sum(one.answers[each] == other.answers[each] for each in both) / max(1, len(both))
