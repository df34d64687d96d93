"""Costs and accuracy by γ: measured latencies of the model, and accuracies of its tasks (OTAS §III-A, §III-D).

γ is the change of the number of tokens at each layer: above 0 prompts are added, below 0 tokens are merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.errors import InvalidArgument, NotFound


class GammaLatency(BaseModel):
    """Latency of a batch by γ and number of images, measured on the device that serves it.

    `median_ms` and `p95_ms` have one row per γ and one column per batch size, in milliseconds for the whole batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gammas: tuple[int, ...] = Field(min_length=1, description="token changes per layer, ascending")
    batches: tuple[int, ...] = Field(min_length=1, description="batch sizes, ascending from 1")
    median_ms: tuple[tuple[float, ...], ...]
    p95_ms: tuple[tuple[float, ...], ...]
    image_bytes: tuple[int, ...] = Field(description="memory per image of a running batch, by γ")
    threads: int = Field(1, ge=1, description="number of threads during the measurement")

    @model_validator(mode="after")
    def _check(self) -> GammaLatency:
        for name, axis in (("gammas", self.gammas), ("batches", self.batches)):
            if any(b <= a for a, b in itertools.pairwise(axis)):
                raise ValueError(f"{name} must ascend, got {axis}")
        if self.batches[0] != 1:
            raise ValueError(f"batches must begin with 1, got {self.batches}")
        for name, grid in (("median_ms", self.median_ms), ("p95_ms", self.p95_ms)):
            if len(grid) != len(self.gammas) or any(len(row) != len(self.batches) for row in grid):
                raise ValueError(f"{name} must have one row per γ, each with one column per batch size")
            if any(not 0 < value < float("inf") for row in grid for value in row):
                raise ValueError(f"{name} must contain positive, finite milliseconds")
        if len(self.image_bytes) != len(self.gammas) or min(self.image_bytes) < 0:
            raise ValueError("image_bytes must have one size per γ, none below 0")
        return self

    @property
    def max_batch(self) -> int:
        """Largest measured batch."""
        return self.batches[-1]

    @cached_property
    def table_s(self) -> npt.NDArray[np.float64]:
        """Seconds by index of γ in `gammas` and number of images, of shape [gammas, max_batch + 1]; column 0 is 0.

        Linear between measured batch sizes.
        """
        sizes = np.arange(self.max_batch + 1)
        table = np.stack([np.interp(sizes, self.batches, row) for row in self.median_ms]) / 1e3
        table[:, 0] = 0.0
        return table

    def throughput(self, gamma: int) -> float:
        """Return the throughput of γ at its best batch size, in images per second.

        Raises:
            InvalidArgument: γ was not measured.
        """
        seconds = self.table_s[self.index(gamma), 1:]
        return float((np.arange(1, self.max_batch + 1) / seconds).max())

    def index(self, gamma: int) -> int:
        """Return the index of γ in `gammas`; raises as `throughput`."""
        if gamma not in self.gammas:
            raise InvalidArgument(f"γ {gamma} was not measured; accepted: {', '.join(map(str, self.gammas))}")
        return self.gammas.index(gamma)


@dataclass(frozen=True, slots=True)
class RateStep:
    """A row of the table f(q) (OTAS, Table I).

    Attributes:
        max_rate: Largest arrival rate of the row, in queries per second.
        gamma: γ for rates up to it.
    """

    max_rate: float
    gamma: int


@dataclass(frozen=True)
class Profile:
    """Costs and accuracies that policies read.

    Attributes:
        latency: Latency of the model's batches.
        accuracies: Accuracy by task and γ, from 0 to 1; may change while serving.
    """

    latency: GammaLatency
    accuracies: Mapping[str, Mapping[int, float]]

    @property
    def gammas(self) -> tuple[int, ...]:
        """List L of γ, ascending, which includes 0."""
        return self.latency.gammas

    @property
    def max_batch(self) -> int:
        """Maximum number of images in a batch."""
        return self.latency.max_batch

    def latency_s(self, gamma: int, batch: int) -> float:
        """Return the seconds of a batch, linear between measured batch sizes.

        Args:
            gamma: The γ of the batch.
            batch: Number of images.

        Raises:
            InvalidArgument: γ was not measured, or the batch is empty or larger than measured.
        """
        if not 1 <= batch <= self.max_batch:
            raise InvalidArgument(f"no measured latency for {batch} images: the profile covers 1 to {self.max_batch}")
        return float(self.latency.table_s[self.latency.index(gamma), batch])

    def memory_bytes(self, gamma: int, batch: int) -> int:
        """Return the memory of a running batch, M_b of Eq. (1c), in bytes; raises as `latency_s`."""
        return batch * self.latency.image_bytes[self.latency.index(gamma)]

    def accuracy(self, task: str, gamma: int) -> float:
        """Return a task's accuracy at γ, measured on images that it was not trained on.

        Raises:
            NotFound: There is no such task.
            InvalidArgument: The task has no accuracy for γ.
        """
        try:
            found = self.accuracies[task]
        except KeyError:
            raise NotFound(f"no accuracies of task '{task}' are known") from None
        if gamma not in found:
            raise InvalidArgument(f"task '{task}' has no accuracy for γ {gamma}")
        return found[gamma]

    @cached_property
    def rate_table(self) -> tuple[RateStep, ...]:
        """Table f(q) (Table I), by ascending rates; the last one is infinite.

        A rate gets the largest γ with at least that throughput. A γ that is not faster than a larger one is left out,
        and rates above all throughputs get the fastest γ.
        """
        steps: list[RateStep] = []
        for gamma in reversed(self.gammas):
            max_rate = self.latency.throughput(gamma)
            if not steps or max_rate > steps[-1].max_rate:
                steps.append(RateStep(max_rate, gamma))
        return (*steps[:-1], RateStep(float("inf"), steps[-1].gamma))

    def gamma_for_rate(self, rate: float) -> int:
        """Return f(q): the γ for an arrival rate in queries per second (Algorithm 3, line 1)."""
        return next(step.gamma for step in self.rate_table if rate <= step.max_rate)
