"""`python -m benchmarks.compositions.shared_level [--quick] [--json FILE]`: many cascades over one small model.

Each cascade's small level is a task of one shared encoder, against cascades each with the same small model of its own
in its process. What they answer is the same, and so is what their large levels cost.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer

from benchmarks.compositions.plot import plot_shared
from benchmarks.compositions.shared_prepare import OWN, SHARED, Artefacts, model, prepare, write_system
from benchmarks.report import Claim, Report, progress
from benchmarks.serving_path.prepare import cache_folder
from benchmarks.usage import Usage
from demo.texts import make_examples
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import AsyncClient

SYSTEMS = {OWN: "a small model in each cascade's process", SHARED: "a task of one shared encoder for each cascade"}
_OUTPUTS = ["label", "level"]
_WARM_UP, _SETTLE_S, _TIMEOUT_S = 20, 0.5, 60.0
# Requests in flight for each cascade where the server is kept busy.
_IN_FLIGHT = 4
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: cascades, rounds, seconds of each load, and loads as shares of what the cascades with a
    small model each can answer."""

    cascades: int
    rounds: int
    seconds: float
    loads: tuple[float, ...]


FULL = Size(cascades=8, rounds=3, seconds=20, loads=(0.4, 0.7))
QUICK = Size(cascades=4, rounds=1, seconds=5, loads=(0.5,))


@dataclass(slots=True)
class Arrived:
    """One system under Poisson arrivals, mixed over its cascades; latency counts from when a request was due."""

    latencies_ms: list[float] = field(default_factory=list)
    answers: dict[str, tuple[str, int]] = field(default_factory=dict)  # label and level by request id
    failed: int = 0
    others: float = 0.0  # share of the cores that other work used


@dataclass(slots=True)
class Round:
    """What one start of one system gave."""

    pss_mib: float  # of the server and all its processes, once every cascade has answered
    processes: int
    per_second: float  # answers where the server is kept busy
    failed: int
    loads: dict[float, Arrived] = field(default_factory=dict)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cascades, one round: some minutes.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure what many cascades gain by having one small model between them."""
    size = QUICK if quick else FULL
    report = Report("shared_level", quick)
    artefacts = prepare()
    print(f"artefacts {artefacts.digest}; caches are off")
    found: dict[str, list[Round]] = {system: [] for system in SYSTEMS}
    rate = 0.0
    for turn in range(size.rounds):
        # The first of all says what a load is a share of.
        for system in SYSTEMS if turn % 2 == 0 else reversed(SYSTEMS):
            progress(f"round {turn + 1} of {size.rounds}: {size.cascades} cascades, {system}")
            done = _measure(artefacts, system, size, rate, turn)
            rate = rate or done.per_second
            found[system].append(done)
    add_shared(report, found, size, rate)
    report.finish(json)
    if json is not None:
        plot_shared(report.measured, json.with_suffix(".png"))


def _measure(artefacts: Artefacts, system: str, size: Size, rate: float, turn: int) -> Round:
    names = [model(number) for number in range(size.cascades)]
    named = [part for name in names for part in ("--model", name)]
    with tempfile.TemporaryDirectory(prefix="shared-level-", dir=cache_folder()) as folder:
        write_system(Path(folder), artefacts, system, size.cascades)
        with tidal_serve(Path(folder), "--exit-timeout", "3", *named) as server:
            asyncio.run(_busy(server, names, seconds=1.0, seed=-1, most=_WARM_UP * len(names)))
            time.sleep(_SETTLE_S)
            processes = _processes(server)
            pss = sum(process.memory_full_info().pss for process in processes) / _MIB
            per_second, failed = asyncio.run(_busy(server, names, seconds=size.seconds / 2, seed=turn))
            done = Round(pss, len(processes), per_second, failed)
            for load in size.loads:
                usage = Usage()
                with usage.watch(server):
                    arrived = asyncio.run(_arrive(server, names, load * (rate or per_second), size.seconds, turn))
                arrived.others = usage.others
                done.loads[load] = arrived
            return done


def _processes(server: RunningServer) -> list[psutil.Process]:
    process = psutil.Process(server.state.server_pid)
    return [process, *process.children(recursive=True)]


async def _busy(
    server: RunningServer, names: Sequence[str], *, seconds: float, seed: int, most: int | None = None
) -> tuple[float, int]:
    """Answers a second with some requests to every cascade in flight all the time, and how many failed."""
    texts = [text for text, _ in make_examples(400, 1000 + seed)]
    done = failed = 0
    async with AsyncClient(server.grpc, timeout_s=_TIMEOUT_S) as client:
        begin = time.perf_counter()

        async def keep_asking(name: str, draw: random.Random) -> None:
            nonlocal done, failed
            while time.perf_counter() < begin + seconds and (most is None or done + failed < most):
                try:
                    await client.classify(name, draw.choice(texts), outputs=_OUTPUTS, request_id=str(draw.random()))
                    done += 1
                except Exception:
                    failed += 1

        rows = [(name, random.Random(f"{seed} {name} {lane}")) for name in names for lane in range(_IN_FLIGHT)]
        await asyncio.gather(*(keep_asking(name, draw) for name, draw in rows))
        return done / (time.perf_counter() - begin), failed


async def _arrive(server: RunningServer, names: Sequence[str], rate: float, seconds: float, seed: int) -> Arrived:
    """Requests at random times to random cascades; equal seeds and rates give equal ones, with the same draws."""
    draw = random.Random(seed)
    texts = [text for text, _ in make_examples(400, 2000 + seed)]
    due, plan = 0.0, []
    while (due := due + draw.expovariate(rate)) < seconds:
        plan.append((due, draw.choice(names), draw.choice(texts), f"round {seed} query {len(plan)}"))
    found = Arrived()
    async with AsyncClient(server.grpc, timeout_s=_TIMEOUT_S) as client:
        begin = time.perf_counter() + 0.1

        async def ask(due: float, name: str, text: str, request_id: str) -> None:
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            try:
                answer = await client.classify(name, text, outputs=_OUTPUTS, request_id=request_id)
            except Exception:
                found.failed += 1
                return
            found.latencies_ms.append((time.perf_counter() - begin - due) * 1e3)
            found.answers[request_id] = answer.label, int(answer.other["level"].item())

        await asyncio.gather(*(ask(*each) for each in plan))
    return found


def add_shared(report: Report, found: dict[str, list[Round]], size: Size, rate: float) -> None:
    """Tables and claims: medians of the rounds, ratios within a round."""
    rows = [[system, means] for system, means in SYSTEMS.items()]
    report.add_table(f"{size.cascades} cascades: their small levels", ["system", "what it is"], rows)
    rows = [
        [
            system,
            f"{statistics.median(each.pss_mib for each in rounds):.0f}",
            str(rounds[0].processes),
            f"{statistics.median(each.per_second for each in rounds):.0f}",
            str(sum(each.failed for each in rounds)),
        ]
        for system, rounds in found.items()
    ]
    columns = ["system", "MiB (PSS, all processes)", "processes", "answers/s", "failed"]
    report.add_table(f"memory, and {_IN_FLIGHT} requests to each cascade in flight", columns, rows)
    for load in size.loads:
        rows = [_row(system, [each.loads[load] for each in rounds]) for system, rounds in found.items()]
        columns = ["system", "mean ms", "p50", "p98", "failed", "others"]
        report.add_table(f"Poisson arrivals over all cascades: {load:.0%} of {rate:.0f}/s", columns, rows)
    _claim(report, "shared_memory", "<= 1.0", [o.pss_mib / s.pss_mib for s, o in _pairs(found)])
    _claim(report, "shared_answers", ">= 1.0", [o.per_second / s.per_second for s, o in _pairs(found)])
    for load in size.loads:
        both = [(s.loads[load], o.loads[load]) for s, o in _pairs(found)]
        means = [float(np.mean(o.latencies_ms) / np.mean(s.latencies_ms)) for s, o in both]
        _claim(report, f"shared_mean[{load:.0%}]", "<= 1.0", means)
    same = min(_same(s.loads[load], o.loads[load]) for s, o in _pairs(found) for load in size.loads)
    report.claims.append(Claim("shared_same_answers", ">= 0.99", same, note="least share of equal labels and levels"))
    lost = sum(each.failed + sum(a.failed for a in each.loads.values()) for rounds in found.values() for each in rounds)
    report.claims.append(Claim("shared_failed", "== 0", lost))
    report.measured = {system: [asdict(each) for each in rounds] for system, rounds in found.items()}


def _pairs(found: dict[str, list[Round]]) -> list[tuple[Round, Round]]:
    """Of each round the system with a small model each, and the shared one."""
    return list(zip(found[OWN], found[SHARED], strict=True))


def _row(system: str, rounds: Sequence[Arrived]) -> list[str]:
    figures = [(np.mean(each.latencies_ms), *np.percentile(each.latencies_ms, [50, 98])) for each in rounds]
    medians = (f"{value:.1f}" for value in np.median(figures, axis=0))
    others = f"{max(each.others for each in rounds):.0%}"
    return [system, *medians, str(sum(each.failed for each in rounds)), others]


def _claim(report: Report, name: str, goal: str, ratios: Sequence[float]) -> None:
    spread = f"shared / own; rounds: {min(ratios):.2f} to {max(ratios):.2f}"
    report.claims.append(Claim(name, goal, statistics.median(ratios), note=spread))


def _same(one: Arrived, other: Arrived) -> float:
    both = one.answers.keys() & other.answers.keys()
    return sum(one.answers[each] == other.answers[each] for each in both) / max(1, len(both))


if __name__ == "__main__":
    typer.run(main)
