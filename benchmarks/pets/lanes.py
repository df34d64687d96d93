"""Latency of PetS beside other processes: all threads for every batch, against the policy that also uses single ones.

One process holds the engine and a service for each of both; it sends them the same texts, in alternation, at Poisson
arrivals, while a number of other processes keeps computing for a share of the time.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from benchmarks.report import Report, progress
from testing.requests import TextRequest, make_context
from tidal.metrics import Metrics
from tidal.pets.base import load_base_layers
from tidal.pets.copies import MergingOptions
from tidal.pets.kinds.kind import kinds as known_kinds
from tidal.pets.library import open_library
from tidal.pets.manifest import ENGINE_FOLDER, load_pets_manifest
from tidal.pets.opening import open_pets_engine
from tidal.pets.policies import PetsScheduler
from tidal.pets.policies.merging import MergeRule
from tidal.pets.service import PetsService
from tidal.pets.tasks.folder import add_task
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.texts import TaskTexts
from tidal.service import ServiceContext
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.typical import typical_task

WIDE, POLICY = "all threads", "policy"
_TASKS = 15
_WANTED = frozenset({"label"})
_IN_FLIGHT = 32
# Part of each measurement that does not count, while the policy adapts to the changed load.
_ADAPTING = 0.25
# Period of a disturbing process.
_PERIOD_S = 0.02


class Timed(TextRequest):
    """A request that notes when it was answered, and lets a closed loop send the next one."""

    def __init__(self, text: str, task: str, freed: threading.Semaphore | None) -> None:
        super().__init__(text, wanted=_WANTED, task=task)
        self.ended = 0.0
        self._freed = freed

    def _finish(self) -> None:
        self.ended = time.monotonic()
        super()._finish()
        if self._freed is not None:
            self._freed.release()


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of 4 to 64 tokens for random tasks, the same for each seed."""

    tasks: list[str]

    def draw(self, seed: int, count: int) -> list[tuple[str, str]]:
        """Return texts with their tasks."""
        draw = np.random.default_rng(seed)
        words, tasks = draw.integers(2, 63, count), draw.integers(len(self.tasks), size=count)
        return [("the " * int(n), self.tasks[int(task)]) for n, task in zip(words, tasks, strict=True)]


def _disturb(share: float) -> None:
    while True:
        end = time.monotonic() + share * _PERIOD_S
        while time.monotonic() < end:
            pass
        if share < 1:
            time.sleep((1 - share) * _PERIOD_S)


@contextmanager
def disturbed(processes: int, share: float) -> Iterator[None]:
    """Keep some processes computing for a share of the time."""
    started = [multiprocessing.get_context("spawn").Process(target=_disturb, args=(share,)) for _ in range(processes)]
    for each in started:
        each.start()
    time.sleep(1.0 if started else 0.0)  # imports
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.join()


@contextmanager
def services(version: Path) -> Iterator[tuple[Mapping[str, PetsService], Texts]]:
    """Serve a published base twice over one engine, with random tasks of all kinds."""
    manifest = load_pets_manifest(version)
    tables, base = manifest.profile.tables(), load_base_layers(version)
    engine = open_pets_engine(
        manifest.engine, version / ENGINE_FOLDER, threads=manifest.threads, device="cpu", narrow=manifest.threads
    )
    texts = TaskTexts(version / manifest.tokenizer.file, manifest.max_length, truncate=True)
    made = Provenance(format="random", source="for speed only")

    def never(_terms: Any) -> Any:
        raise NotImplementedError

    def serve(folder: Path, narrow: int) -> PetsService:
        def start(context: ServiceContext) -> PetsService:
            return PetsService(
                context,
                texts,
                engine,
                open_library(tasks_folder(folder), base, engine, texts.tokenizer, 1 << 30, context.metrics),
                PetsScheduler(tables, narrow=narrow),
                MergingOptions(never, tables, MergeRule(0)),
                type_ids=manifest.tokenizer.type_ids,
                attention=False,
                lengths=manifest.profile.shared.lengths,
            )

        return start(make_context(folder, Metrics("pets"), model="p", outputs=_WANTED, failures=[]))

    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        kinds = sorted(known_kinds())
        names = [f"t{number}" for number in range(_TASKS)]
        for number, name in enumerate(names):
            kind = kinds[number % len(kinds)]
            add_task(tasks_folder(folder), name, kind, typical_task(kind, base, seed=number), base, made)
        found = {WIDE: serve(folder, 0), POLICY: serve(folder, manifest.threads)}
        for service in found.values():
            stack.callback(service.close, 10)
        yield found, Texts(names)


def open_loop(service: PetsService, texts: Texts, rate: float, seconds: float, seed: int) -> float:
    """Return the mean latency in ms of Poisson arrivals, counted from when each was due."""
    draw = np.random.default_rng(seed)
    due = time.monotonic() + np.cumsum(draw.exponential(1 / rate, int(rate * seconds)))
    sent = []
    for at, (text, task) in zip(due.tolist(), texts.draw(seed, len(due)), strict=True):
        time.sleep(max(0.0, at - time.monotonic()))
        request = Timed(text, task, None)
        sent.append((at, request))
        service.submit([request])
    _wait(request for _, request in sent)
    return float(np.mean([request.ended - at for at, request in sent[int(_ADAPTING * len(sent)) :]]) * 1e3)


def closed_loop(service: PetsService, texts: Texts, seconds: float, seed: int) -> float:
    """Return the answers per second with a fixed number of queries in flight."""
    freed = threading.Semaphore(_IN_FLIGHT)
    sent = []
    start, end = time.monotonic() + _ADAPTING * seconds, time.monotonic() + seconds
    for text, task in texts.draw(seed, 100_000):
        freed.acquire()
        if time.monotonic() > end:
            break
        sent.append(request := Timed(text, task, freed))
        service.submit([request])
    _wait(sent)
    return sum(start < request.ended <= end for request in sent) / (end - start)


def _wait(sent: Iterable[Timed]) -> None:
    """Wait until all requests are answered, however long their queue is."""
    for request in sent:
        while not request.answered:
            time.sleep(1e-3)


def _others() -> tuple[float, float]:
    """Return the CPU seconds of other processes so far, and the time, in seconds."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system - time.process_time(), time.monotonic()


def main(
    version: Annotated[Path, typer.Argument(help="Folder of a published version of a base.")],
    processes: Annotated[list[int], typer.Option(help="Numbers of disturbing processes.")] = [0, 4, 8],  # noqa: B006
    share: Annotated[float, typer.Option(help="Share of the time that each of them computes.")] = 0.1,
    rounds: Annotated[int, typer.Option(help="Rounds, of which medians are printed.")] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 8.0,
) -> None:
    """Print mean latency at 40 and 70 % of the capacity, and throughput, alone and beside other processes."""
    with services(version) as (found, texts):
        for service in found.values():
            closed_loop(service, texts, 2.0, 0)
        capacity = statistics.median(closed_loop(found[WIDE], texts, seconds / 2, seed) for seed in range(3))
        progress(f"all threads answer {capacity:.0f}/s with {_IN_FLIGHT} in flight")
        rows = []
        for number in processes:
            measured: dict[tuple[str, str], list[float]] = {}
            with disturbed(number, share):
                used, start = _others()
                for turn in range(rounds):
                    for load in (0.4, 0.7):
                        for name, service in found.items():
                            took = open_loop(service, texts, load * capacity, seconds, turn)
                            measured.setdefault((f"{load:.0%} load, ms", name), []).append(took)
                    for name, service in found.items():
                        rate = closed_loop(service, texts, seconds, turn)
                        measured.setdefault((f"{_IN_FLIGHT} in flight, answers/s", name), []).append(rate)
                now_used, now = _others()
            cores = (now_used - used) / (now - start)
            for (case, name), values in measured.items():
                spread = f"{min(values):.1f}-{max(values):.1f}"
                rows.append(
                    [f"{number} beside, {case}, {name}", f"{statistics.median(values):.1f}", spread, f"{cores:.2f}"]
                )
                progress(" ".join(rows[-1]))
    Report("pets lanes", quick=False).add_table(
        "mean latency, or answers", ["case", "median", "range", "cores of others"], rows
    )


if __name__ == "__main__":
    typer.run(main)
