"""Load: queries of the types of Table II, at rates by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.otas.inputs import TABLE_2
from benchmarks.otas.live.artefacts import LiveTask
from tidal.simulator.otas import QueryTrace, QueryType
from tidal_client.codec import image_inputs
from tidal_client.load import RequestVariant, Schedule, Times

# Network time to the server and back, which clients subtract from the deadline that they send.
ON_THE_WAY_S = 0.02
_NEVER_LATE_S = 1000.0
# Task of Table II that the least accurate task replaces.
_HARDEST = "CIFAR100"


@dataclass(frozen=True, slots=True)
class OtasLoad:
    """Queries of one run, the same for every system; `kinds` are indices into `types`, of shape [queries]."""

    types: tuple[QueryType, ...]
    times: Times
    kinds: npt.NDArray[np.intp]
    images: Sequence[bytes]
    truth: Sequence[str]

    def __len__(self) -> int:
        return len(self.times)

    @property
    def seconds(self) -> float:
        """Time until the last query, in seconds."""
        return float(self.times[-1])

    @property
    def latency_s(self) -> npt.NDArray[np.float64]:
        """Latency limit of each query, in seconds."""
        return np.array([each.latency_s for each in self.types])[self.kinds]

    @property
    def utility(self) -> npt.NDArray[np.float64]:
        """Utility of a correct answer in time, by query."""
        return np.array([each.utility for each in self.types])[self.kinds]

    def steady(self, count: int, rate: float) -> OtasLoad:
        """Return a load of repeated queries at a constant rate, none of which can be late."""
        rows = [number % len(self) for number in range(count)]
        return OtasLoad(
            tuple(QueryType(each.task, _NEVER_LATE_S, each.utility) for each in self.types),
            np.arange(count) / rate,
            self.kinds[rows],
            [self.images[row] for row in rows],
            [self.truth[row] for row in rows],
        )


def types_of(accuracies: Mapping[str, float]) -> tuple[QueryType, ...]:
    """Return Table II with other tasks; the least accurate one replaces the paper's least accurate one.

    Args:
        accuracies: Accuracy at γ 0 by task; with fewer than three tasks, one is used several times.
    """
    hardest, *others = sorted(accuracies, key=lambda task: accuracies[task])
    others = others or [hardest]
    places = {_HARDEST: hardest, "CIFAR10": others[0], "EuroSAT": others[-1]}
    return tuple(QueryType(places[each.task], each.latency_s, each.utility) for each in TABLE_2)


def make_load(rates: Sequence[float], types: Sequence[QueryType], tasks: Sequence[LiveTask], seed: int) -> OtasLoad:
    """Draw Poisson arrivals at rates by second, with random types; images repeat only after all were used."""
    queries = list(QueryTrace(rates, types, seed=seed))
    if not queries:
        raise ValueError(f"no query in {len(rates)} s at {max(rates):.3g} a second: the machine is too slow for this")
    places = {(each.task, each.latency_s, each.utility): place for place, each in enumerate(types)}
    kinds = [places[query.task, round(query.deadline - query.arrival, 9), query.utility] for query in queries]
    rng = np.random.default_rng(seed)
    order = {task.name: rng.permutation(len(task.images)).tolist() for task in tasks}
    by_name = {task.name: task for task in tasks}
    used = dict.fromkeys(order, 0)
    images, truth = [], []
    for query in queries:
        rows = order[query.task]
        row = rows[used[query.task] % len(rows)]
        used[query.task] += 1
        images.append(by_name[query.task].images[row])
        truth.append(by_name[query.task].truth[row])
    times = np.array([query.arrival for query in queries])
    return OtasLoad(tuple(types), times, np.array(kinds, np.intp), images, truth)


def schedule_of(load: OtasLoad) -> Schedule:
    """Return the load as a schedule of the load generator."""
    mix = tuple(
        RequestVariant(
            1.0, {"task": each.task, "latency_ms": 1e3 * (each.latency_s - ON_THE_WAY_S), "utility": each.utility}
        )
        for each in load.types
    )
    schedule = Schedule(load.times, [image_inputs(image) for image in load.images], mix)
    schedule.variants[:] = load.kinds  # it drew others
    return schedule
