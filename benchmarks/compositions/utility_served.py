"""Deadlines and utility over text tasks on a server: a base and its tasks, served with and without `by_utility`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compositions.prepare import ENCODER, CascadeArtefacts
from benchmarks.compositions.utility import BY_UTILITY, LEAST_TIME, QUERY_TYPES, draw_queries
from benchmarks.texts import TextMaker
from benchmarks.usage import Usage
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import add_task
from tidal.pets.tasks.manifest import Provenance
from tidal.server.child import RunningServer
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.typical import TYPICAL_KINDS, typical_task
from tidal_client.load import RequestVariant, Schedule, run_load, text_inputs

MODELS = {LEAST_TIME: "least_time", BY_UTILITY: "by_utility"}
_TASKS = 15
_BY_UTILITY = 'parameters { key: "by_utility" value { string_value: "true" } }\n'
_MADE = Provenance(format="random", source="published sizes, random values: for speed only")
_TIMEOUT_S, _WARM_UP = 60.0, 40
# Maximum requests to measure the capacity with, and the mean and minimum length in tokens, as in the simulation.
_MOST, _MEAN_TOKENS, _SHORTEST = 800, 24, 4


@dataclass(frozen=True, slots=True)
class ServedUtility:
    """The result of one system's requests.

    Attributes:
        utility: Share of the utility that was earned in time.
        in_time: Share of the requests that were answered in time.
        others: Share of the cores that other work used.
    """

    utility: float
    in_time: float
    others: float


def write_models(repository: Path, artefacts: CascadeArtefacts) -> None:
    """Add the base under both names, with the same random tasks of all kinds, to a repository.

    Args:
        repository: Repository on the artefacts' file system.
        artefacts: Built artefacts.
    """
    version = artefacts.version(ENCODER)
    base = load_base_layers(version)
    for system, model in MODELS.items():
        target = repository / model
        shutil.copytree(version, target / version.name, copy_function=os.link)
        config = (version.parent / "config.pbtxt").read_text().replace(f'"{ENCODER}"', f'"{model}"')
        (target / "config.pbtxt").write_text(config + (_BY_UTILITY if system == BY_UTILITY else ""))
        for number in range(_TASKS):
            kind = TYPICAL_KINDS[number % len(TYPICAL_KINDS)]
            add_task(tasks_folder(target), _task(number), kind, typical_task(kind, base, number), base, _MADE)


def compare(
    server: RunningServer,
    artefacts: CascadeArtefacts,
    loads: Sequence[float],
    *,
    seconds: float,
    rounds: int,
    report_progress: Callable[[str], None],
) -> dict[float, list[dict[str, ServedUtility]]]:
    """Measure both systems, one after the other with the same arrivals and texts; return the results by load and round.

    Args:
        server: Running server with both models.
        artefacts: Built artefacts.
        loads: Loads as shares of the server's capacity without deadlines.
        seconds: Duration of each load.
        rounds: Number of rounds.
        report_progress: Receives the current step.
    """
    tables = artefacts.tables
    texts = TextMaker(artefacts.version(ENCODER) / "tokenizer" / "tokenizer.json", seed=5)
    tasks = [RequestVariant(parameters={"task": _task(number)}) for number in range(_TASKS)]
    for model in MODELS.values():
        warm = Schedule(np.arange(_WARM_UP) / 20, _inputs(texts, [_MEAN_TOKENS] * _WARM_UP), tasks)
        run_load(server.http, model, warm, timeout_s=_TIMEOUT_S)
    rate = _capacity(server, texts, tasks, seconds)
    found: dict[float, list[dict[str, ServedUtility]]] = {load: [] for load in loads}
    for round_number in range(rounds):
        for load in loads:
            report_progress(
                f"round {round_number + 1} of {rounds}: {load:.0%} of {rate:.0f} texts per second to the shared encoder"
            )
            queries = draw_queries(tables, load * rate, seconds, round_number)
            inputs = _inputs(texts, [query.length for query in queries])
            schedule = Schedule(np.array([query.arrival for query in queries]), inputs, _mix(), seed=round_number)
            order = list(MODELS) if round_number % 2 == 0 else list(reversed(MODELS))
            done = {system: _measure(server, MODELS[system], schedule) for system in order}
            found[load].append({system: done[system] for system in MODELS})
    return found


def _measure(server: RunningServer, model: str, schedule: Schedule) -> ServedUtility:
    usage = Usage()
    with usage.watch(server):
        result = run_load(server.http, model, schedule, outputs=["label"], timeout_s=_TIMEOUT_S)
    options = [schedule.mix[place].parameters for place in schedule.variants]
    utilities = np.array([each["utility"] for each in options], float)
    allowed_s = np.array([each["latency_ms"] for each in options], float) / 1e3
    in_time = result.answered & (np.where(result.answered, result.done - result.scheduled, np.inf) <= allowed_s)
    return ServedUtility(float(utilities[in_time].sum() / utilities.sum()), float(in_time.mean()), usage.others)


def _capacity(server: RunningServer, texts: TextMaker, tasks: Sequence[RequestVariant], seconds: float) -> float:
    """Return the answers per second if all requests arrive at once; their number grows until that takes a while."""
    count = 100
    while True:
        lengths = np.random.default_rng(count).integers(_SHORTEST, 2 * _MEAN_TOKENS - _SHORTEST, count).tolist()
        schedule = Schedule(np.linspace(0, 0.2, count), _inputs(texts, lengths), tasks)
        result = run_load(server.http, MODELS[LEAST_TIME], schedule, outputs=["label"], timeout_s=_TIMEOUT_S)
        if result.duration >= seconds / 4 or count >= _MOST:
            return float(result.answered.sum()) / result.duration
        count *= 2


def _inputs(texts: TextMaker, lengths: Sequence[int]) -> Sequence[Mapping[str, Any]]:
    return text_inputs([texts.text(length) for length in lengths])


def _mix() -> list[RequestVariant]:
    return [
        RequestVariant(parameters={"task": _task(number), "latency_ms": 1e3 * latency_s, "utility": utility})
        for number in range(_TASKS)
        for latency_s, utility in QUERY_TYPES
    ]


def _task(number: int) -> str:
    return f"task_{number}"
