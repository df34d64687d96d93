"""Profiles with round numbers, for calculations by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidal.errors import NotFound
from tidal.otas.policies import Query


@dataclass(frozen=True)
class MadeProfile:
    """Seconds of a batch by γ and number of queries, accuracies by task and γ, and a table of rates."""

    gammas: tuple[int, ...]
    seconds: Callable[[int, int], float]
    accuracies: Mapping[str, Mapping[int, float]]
    rates: tuple[tuple[float, int], ...]
    max_batch: int = 64

    def latency_s(self, gamma: int, batch: int) -> float:
        assert 1 <= batch <= self.max_batch
        return self.seconds(gamma, batch)

    def memory_bytes(self, gamma: int, batch: int) -> int:
        return batch * (100 + gamma)

    def accuracy(self, task: str, gamma: int) -> float:
        if task not in self.accuracies:
            raise NotFound(f"no task {task}")
        return self.accuracies[task][gamma]

    def gamma_for_rate(self, rate: float) -> int:
        return next((gamma for most, gamma in self.rates if rate <= most), self.gammas[0])


# A query takes 1, 2 or 4 ms in a batch of any size; prompts help the hard task most.
LINEAR = MadeProfile(
    gammas=(-10, 0, 4),
    seconds=lambda gamma, batch: {-10: 0.001, 0: 0.002, 4: 0.004}[gamma] * batch,
    accuracies={"easy": {-10: 0.9, 0: 0.95, 4: 1.0}, "hard": {-10: 0.4, 0: 0.6, 4: 0.8}},
    rates=((100, 4), (300, 0)),
)
# A batch takes 8 ms, and each query 1, 2 or 4 ms more.
STARTED = MadeProfile(
    gammas=LINEAR.gammas,
    seconds=lambda gamma, batch: 0.008 + LINEAR.seconds(gamma, batch),
    accuracies=LINEAR.accuracies,
    rates=LINEAR.rates,
)


def query(arrival: float, latency: float, utility: float = 1.0, task: str = "easy") -> Query:
    return Query(task, arrival, arrival + latency, utility)
