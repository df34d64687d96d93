"""Measures on a GPU the bandwidth of the kinds' operators and the best number of streams (PetS §4.2, §6.3.3)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import numpy as np
import torch

from tidal.pets.engine.contract import Ids, LoadedTask, PetsEngine
from tidal.pets.policies.streams import TaskOperator
from tidal.pets.policies.thresholds import ThresholdCase, best_threshold
from tidal.pets.profile import Grid, OperatorProfile, PetsProfile, StreamRule
from tidal.pets.terms import BaseLayers, FloatArray, LowRankDelta, SparseDelta, TaskTerms
from tidal.pets.torch_engine.engine import TorchPetsEngine
from tidal.pets.torch_engine.streams import by_intensity
from tidal.pets.torch_engine.tasks import TorchTask
from tidal_builders.pets.typical import typical_task
from tidal_builders.timing import Call, measure

# Numbers of streams to compare, and batches to compare them in: number of tasks, and of queries per task.
_STREAMS = (1, 2, 4, 8, 16, 32)
_TASKS, _QUERIES = (8, 32), (1, 2, 4)
_ROUNDS = 3
_VERIFIED_STREAMS = 3
_TOKEN = 1
# Of a number in float32.
_BYTES = 4


def on_gpu(engine: PetsEngine) -> TypeGuard[TorchPetsEngine]:
    """Whether an engine runs operators on streams of a GPU."""
    return isinstance(engine, TorchPetsEngine) and engine.device == "gpu"


def run_every_way(
    engine: PetsEngine, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, types: Ids | None
) -> list[FloatArray]:
    """Pooled vectors [rows, width] of a batch, once for each way in which an engine may run it.

    On a GPU these are one stream and several, each uncaptured and captured, as a layout is when it recurs.

    Args:
        engine: Engine of the base.
        tasks: Task of each row.
        ids: Token ids [rows, tokens].
        lengths: Number of real tokens of each row [rows].
        types: Token types [rows, tokens], or None.
    """
    if not on_gpu(engine):
        return [engine.pooled(tasks, ids, lengths, types)]
    before, found = engine.assign, []
    for streams in (1, _VERIFIED_STREAMS):
        engine.assign = partial(_round_robin, streams)
        found += [engine.pooled(tasks, ids, lengths, types) for _ in range(2)]
    engine.assign = before
    return found


def _round_robin(streams: int, operators: Sequence[TaskOperator]) -> list[int]:
    return [position % streams for position in range(len(operators))]


def measure_memory(calls: Mapping[tuple[str, int, int], Call]) -> dict[tuple[int, int], float]:
    """Memory of a batch on the GPU besides weights and tasks, in bytes by length and queries: the maximum over kinds.

    Call it before anything else runs: a captured batch allocates no memory.

    Args:
        calls: Batches to run by kind, length and number of queries.
    """
    most: dict[tuple[int, int], float] = {}
    for (_, length, queries), call in calls.items():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(0)
        taken = float(torch.cuda.max_memory_allocated() - before)
        most[length, queries] = max(taken, most.get((length, queries), 0.0))
    return most


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Times of one batch.

    Attributes:
        tokens: Mean number of tokens per task.
        seconds: Execution time by the number of streams.
    """

    tokens: float
    seconds: Mapping[int, float]


def with_streams(engine: TorchPetsEngine, layers: BaseLayers, profile: PetsProfile, *, seconds: float) -> PetsProfile:
    """Complete a profile with ω of every kind, and the rule for the number of streams.

    Args:
        engine: Engine of the base.
        layers: Layers of the base.
        profile: Profile with α and β.
        seconds: Time after which no further round begins, except the second.
    """
    operators = {
        kind: operator_profile(typical_task(kind, layers), layers, grid) for kind, grid in profile.terms_ms.items()
    }
    profile = profile.model_copy(update={"operators": operators})
    timed = _time_streams(engine, layers, profile, seconds)
    return profile.model_copy(update={"streams": best_rule(timed) if timed else None})


def operator_profile(terms: TaskTerms, layers: BaseLayers, milliseconds: Grid) -> OperatorProfile:
    """The arithmetic of a task's operators, and the bandwidth that they reach.

    ω is the data that the operators move, a task's terms once and each token's activations at every layer with terms,
    divided by their measured time; no counter of the device is read.

    Args:
        terms: Terms of a typical task.
        layers: Layers of the base.
        milliseconds: β of the task's kind.
    """
    flops, activations = 0, 0
    for path, own in terms.linear.items():
        outputs, inputs = layers.linear[path].shape
        match own.delta:
            case SparseDelta(_, columns, _):
                flops += 2 * len(columns)
                activations += inputs
            case LowRankDelta(down, up, _):
                flops += 2 * (down.size + up.size)
                activations += inputs
        if own.bottleneck is not None:
            flops += 2 * (own.bottleneck.down.size + own.bottleneck.up.size)
            activations += outputs
        if own.bias is not None:
            flops += outputs
        activations += 2 * outputs  # read, and written
    for norm in terms.norm.values():
        flops += 2 * len(norm.weight)
        activations += 2 * len(norm.weight)
    shared = terms.bytes - terms.head.weight.nbytes - terms.head.bias.nbytes

    def bandwidth(length: int, queries: int, taken: float) -> float:
        return (shared + _BYTES * activations * length * queries) / (taken / 1e3) / 1e9 if taken > 0 else 0.0

    rows = tuple(
        tuple(bandwidth(length, n, taken) for n, taken in zip(milliseconds.batches, row, strict=False))
        for length, row in zip(milliseconds.lengths, milliseconds.values, strict=True)
    )
    reached = Grid(lengths=milliseconds.lengths, batches=milliseconds.batches, values=rows)
    return OperatorProfile(flops_per_token=flops, gigabytes_per_s=reached)


def best_rule(timed: Sequence[StreamTiming]) -> StreamRule:
    """The two numbers of streams and the threshold between them with the least total time.

    Args:
        timed: Measured cases, at least one; all with the same numbers of streams.
    """
    rules = []
    for few, many in itertools.combinations(sorted(timed[0].seconds), 2):
        threshold = best_threshold(
            [ThresholdCase(case.tokens, case.seconds[few], case.seconds[many]) for case in timed]
        )
        total = sum(case.seconds[few if case.tokens < threshold else many] for case in timed)
        rules.append((total, StreamRule(threshold_tokens=threshold, few=few, many=many)))
    return min(rules, key=lambda rule: rule[0])[1]


def _time_streams(
    engine: TorchPetsEngine, layers: BaseLayers, profile: PetsProfile, seconds: float
) -> list[StreamTiming]:
    """Run batches of tasks of all kinds, as far as the profile reaches, on every number of streams."""
    kinds = tuple(profile.terms_ms)
    tables = profile.tables()
    cases = [
        (tasks, queries, length)
        for tasks, queries, length in itertools.product(_TASKS, _QUERIES, profile.shared.lengths)
        if tasks * queries <= tables.max_batch and np.isfinite(tables.shared[length, tasks * queries])
    ]
    if not cases:
        return []
    terms = [typical_task(kind, layers) for kind in kinds]
    # Operators are distinguished by their tasks: several tasks may share terms.
    loaded = [
        engine.add(terms[number % len(kinds)], cost_key=kinds[number % len(kinds)])
        for number in range(max(tasks for tasks, _, _ in cases))
    ]
    calls: dict[tuple[int, int], Call] = {
        (case, streams): partial(_run, engine, loaded[:tasks] * queries, length, profile, streams)
        for case, (tasks, queries, length) in enumerate(cases)
        for streams in _STREAMS
    }
    before = engine.assign
    timings = measure(calls, rounds=_ROUNDS, budget_s=seconds)
    engine.assign = before
    for task in loaded:
        engine.remove(task)
    return [
        StreamTiming(queries * length, {streams: timings[case, streams].median_ms / 1e3 for streams in _STREAMS})
        for case, (_, queries, length) in enumerate(cases)
    ]


def _run(
    engine: TorchPetsEngine, tasks: Sequence[TorchTask], length: int, profile: PetsProfile, streams: int, _worker: int
) -> None:
    engine.assign = by_intensity(profile, streams)
    engine.pooled(tasks, np.full((len(tasks), length), _TOKEN, np.int32), np.full(len(tasks), length, np.int32))
