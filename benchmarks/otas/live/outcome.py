"""Outcome of one system under one load: the type of every query (§V), and figures of the server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.closed_loop import metric, series
from benchmarks.otas.live.load import OtasLoad
from benchmarks.otas.live.sending import NOT_ANSWERED, Answers
from benchmarks.usage import Usage
from tidal.server.child import RunningServer

#: Length of the intervals by whose arrivals a run's utility is divided, in seconds.
INTERVAL_S = 20
TYPES = ("1: right", "2: wrong", "3: late", "4: evicted")
_RIGHT, _WRONG, _LATE, _EVICTED = range(4)
# Metrics are published every 200 ms.
_COUNTING_S = 0.4


@dataclass(frozen=True, slots=True)
class OtasOutcome:
    """One system under one load in one round.

    Attributes:
        queries: Number of queries.
        offered: Sum of their utilities.
        utility: Utility earned by correct answers in time.
        by_interval: The same by the interval of `INTERVAL_S` in which the query arrived.
        types: Number of queries of types 1 to 4: right, wrong, late, not executed.
        by_gamma: Number of answers at each γ.
        answered: Number of answers and of correct answers, by task and γ.
        mean_batch: Mean number of queries per batch; None if models were loaded during the run.
        busy: Share of the time in which an engine ran; None if models were loaded during the run.
        server: Share of the cores that the server used.
        others: Share of the cores that other processes used.
        warning: Warning that the load generator was the bottleneck; empty if it was not.
        loadings: Seconds of each load of a model, by its name.
    """

    queries: int
    offered: float
    utility: float
    by_interval: list[float]
    types: tuple[int, int, int, int]
    by_gamma: dict[str, int]
    answered: dict[str, dict[str, tuple[int, int]]]
    mean_batch: float | None
    busy: float | None
    server: float
    others: float
    warning: str
    loadings: list[tuple[str, float]]

    @classmethod
    def read(cls, found: dict[str, Any]) -> OtasOutcome:
        """Read an outcome from JSON, which has lists for tuples."""
        answered = {
            task: {gamma: (number, right) for gamma, (number, right) in of_task.items()}
            for task, of_task in found["answered"].items()
        }
        changed = {"types": tuple(found["types"]), "loadings": [(model, took) for model, took in found["loadings"]]}
        return cls(**{**found, **changed, "answered": answered})

    @property
    def accuracy(self) -> float:
        """Accuracy of all answers."""
        counts = [count for of_task in self.answered.values() for count in of_task.values()]
        return sum(right for _, right in counts) / max(1, sum(number for number, _ in counts))

    @property
    def gammas(self) -> dict[int, int]:
        """Number of answers at each γ."""
        return {int(gamma): number for gamma, number in self.by_gamma.items()}


@dataclass(slots=True)
class Watch:
    """Measures a server during a run; the figures are those of `OtasOutcome`."""

    mean_batch: float | None = None
    busy: float | None = None
    usage: Usage = field(default_factory=Usage)

    @contextmanager
    def over(self, server: RunningServer, models: Sequence[str], *, lasting: bool) -> Iterator[None]:
        """Measure models during the block; only `lasting` models keep their counters."""
        time.sleep(_COUNTING_S)
        before = _counts(server, models) if lasting else None
        begin = time.monotonic()
        with self.usage.watch(server):
            yield
        lasted = time.monotonic() - begin
        if before is not None:
            time.sleep(_COUNTING_S)
            after = _counts(server, models)
            queries, batches, seconds = (late - early for late, early in zip(after, before, strict=True))
            self.mean_batch = queries / max(1.0, batches)
            self.busy = seconds / lasted


def judge(load: OtasLoad, answers: Answers) -> npt.NDArray[np.intp]:
    """Return the type of each query as an index into `TYPES`, by the client's clock."""
    answered = np.array([label != NOT_ANSWERED for label in answers.labels])
    right = np.array([label == truth for label, truth in zip(answers.labels, load.truth, strict=True)])
    found = np.where(right, _RIGHT, _WRONG)
    found[answers.seconds > load.latency_s] = _LATE
    found[~answered] = _EVICTED
    return found


def outcome_of(load: OtasLoad, answers: Answers, watch: Watch) -> OtasOutcome:
    """Compute the outcome of a run.

    Raises:
        RuntimeError: A query was neither answered nor evicted.
    """
    if answers.message:
        raise RuntimeError(f"a query was refused: {answers.message} ({answers.errors})")
    types = judge(load, answers)
    by_gamma: Counter[str] = Counter()
    answered: dict[str, dict[str, tuple[int, int]]] = {}
    for number in np.flatnonzero(types != _EVICTED).tolist():
        gamma, task = str(answers.gammas[number]), load.types[load.kinds[number]].task
        right = answers.labels[number] == load.truth[number]
        by_gamma[gamma] += 1
        of_task = answered.setdefault(task, {})
        before = of_task.get(gamma, (0, 0))
        of_task[gamma] = (before[0] + 1, before[1] + right)
    counts = np.bincount(types, minlength=4).tolist()
    earned = np.where(types == _RIGHT, load.utility, 0.0)
    available = watch.usage.available_s
    return OtasOutcome(
        len(load),
        float(load.utility.sum()),
        float(earned.sum()),
        np.bincount((load.times // INTERVAL_S).astype(int), earned).tolist(),
        (counts[0], counts[1], counts[2], counts[3]),
        dict(by_gamma),
        answered,
        watch.mean_batch,
        watch.busy,
        watch.usage.server,
        max(0.0, watch.usage.others - answers.cpu_s / available) if available else 0.0,
        answers.warning,
        [(each.model, each.seconds) for each in answers.loadings],
    )


def _counts(server: RunningServer, models: Sequence[str]) -> tuple[float, float, float]:
    """Return the number of executed queries, of batches, and their seconds, for all models so far."""
    sizes = [metric(server, "tidal_otas_batch_size_queries", model) or (0.0, 0.0) for model in models]
    seconds = [series(server, "tidal_otas_execute_seconds_sum", model) or 0.0 for model in models]
    return sum(queries for queries, _ in sizes), sum(batches for _, batches in sizes), sum(seconds)
