"""Time and memory of the shared encoder and of each task (PetS Figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.pets.full_models import FullModels, run
from benchmarks.pets.tasks import KINDS
from benchmarks.pets.timing import medians
from tidal.pets.openvino_engine.engine import OpenVinoPetsEngine
from tidal.pets.terms import BaseLayers
from tidal_builders.pets.profiling import activation_bytes
from tidal_builders.pets.typical import typical_task

# The paper's workloads: queries per task of eight random tasks, and tokens per query.
WORKLOADS = ((1, 64), (2, 32))
_TASKS = 8
_TOKEN = 1000


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Times of eight tasks in ms.

    Attributes:
        batch: Number of queries per task.
        length: Number of tokens per query.
        together: Time of one shared pass.
        shared: Time of the base alone on the same rows.
        full: Time of eight full models, one after another.
    """

    batch: int
    length: int
    together: float
    shared: float
    full: float

    @property
    def own(self) -> float:
        """Share of the pass that the tasks' operators take."""
        return max(0.0, 1 - self.shared / self.together)


def time_split(
    engine: OpenVinoPetsEngine, base: BaseLayers, models: FullModels, threads: int, rounds: int
) -> list[TimeSplit]:
    """Time both workloads, with the alternatives alternating."""
    terms = [typical_task(KINDS[number % len(KINDS)], base, seed=number) for number in range(_TASKS)]
    tasks = [engine.add(each) for each in terms]
    compiled = [models.compile(each, threads) for each in terms]
    found = []
    for batch, length in WORKLOADS:
        rows = _TASKS * batch
        ids, lengths = np.full((rows, length), _TOKEN, np.int32), np.full(rows, length, np.int32)
        of_rows = [task for task in tasks for _ in range(batch)]
        one = np.full((batch, length), _TOKEN, np.int64)
        inputs = {"input_ids": one, "attention_mask": np.ones_like(one), "token_type_ids": np.zeros_like(one)}

        def full(inputs: dict[str, np.ndarray[Any, Any]] = inputs) -> None:
            for model in compiled:
                run(model, inputs)

        calls: list[Callable[[], object]] = [
            lambda of_rows=of_rows, ids=ids, lengths=lengths: engine.pooled(of_rows, ids, lengths),  # type: ignore[misc]
            lambda ids=ids, lengths=lengths: engine.pooled([None] * len(ids), ids, lengths),  # type: ignore[misc]
            full,
        ]
        found.append(TimeSplit(batch, length, *medians(calls, rounds)))
    for task in tasks:
        engine.remove(task)
    return found


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Memory of a number of tasks in bytes.

    Attributes:
        tasks: Number of tasks.
        shared: Bytes of the base.
        own: Bytes of the tasks.
        data: Bytes of the activations of a batch.
        full: Bytes of full models instead.
    """

    tasks: int
    shared: float
    own: float
    data: float
    full: float


def memory_split(
    engine: OpenVinoPetsEngine, shared: float, each: float, full: float, counts: Sequence[int]
) -> list[MemorySplit]:
    """Compute the memory by number of tasks, for one query of 128 tokens each, from measured bytes.

    Args:
        engine: Engine of the base.
        shared: Bytes of the base.
        each: Bytes of a task, mean of the kinds.
        full: Bytes of a full model.
        counts: Numbers of tasks.
    """
    data = activation_bytes(engine.description) * 128
    return [MemorySplit(count, shared, each * count, data * count, full * count) for count in counts]
