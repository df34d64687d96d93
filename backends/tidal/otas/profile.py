"""What a batch costs and earns by γ: measured latencies of the model, and each task's accuracy (OTAS §III-A, §III-D).

γ is the change of the number of tokens at every layer: prompts that are added where it is above 0, tokens that are
merged away where it is below.
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

    `median_ms` and `p95_ms` have a row a γ and a column a batch size, in milliseconds for the whole batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gammas: tuple[int, ...] = Field(min_length=1, description="token changes a layer, ascending")
    batches: tuple[int, ...] = Field(min_length=1, description="batch sizes, ascending, the first is 1")
    median_ms: tuple[tuple[float, ...], ...]
    p95_ms: tuple[tuple[float, ...], ...]
    image_bytes: tuple[int, ...] = Field(description="memory that an image of a batch takes while it runs, by γ")
    threads: int = Field(1, ge=1, description="threads that ran while it was measured")

    @model_validator(mode="after")
    def _check(self) -> GammaLatency:
        for name, axis in (("gammas", self.gammas), ("batches", self.batches)):
            if any(b <= a for a, b in itertools.pairwise(axis)):
                raise ValueError(f"{name} must ascend, got {axis}")
        if self.batches[0] != 1:
            raise ValueError(f"batches must begin with 1, got {self.batches}")
        for name, grid in (("median_ms", self.median_ms), ("p95_ms", self.p95_ms)):
            if len(grid) != len(self.gammas) or any(len(row) != len(self.batches) for row in grid):
                raise ValueError(f"{name} must have a row a γ, each with a column a batch size")
            if any(not 0 < value < float("inf") for row in grid for value in row):
                raise ValueError(f"{name} must hold positive, finite milliseconds")
        if len(self.image_bytes) != len(self.gammas) or min(self.image_bytes) < 0:
            raise ValueError("image_bytes must have a size a γ, none below 0")
        return self

    @property
    def max_batch(self) -> int:
        """Largest measured batch."""
        return self.batches[-1]

    @cached_property
    def table_s(self) -> npt.NDArray[np.float64]:
        """Seconds by place of γ in `gammas` and number of images, shape [gammas, max_batch + 1]; column 0 is 0.

        Linear between measured batch sizes.
        """
        sizes = np.arange(self.max_batch + 1)
        table = np.stack([np.interp(sizes, self.batches, row) for row in self.median_ms]) / 1e3
        table[:, 0] = 0.0
        return table

    def throughput(self, gamma: int) -> float:
        """Images a second that γ sustains, at its best batch size.

        Raises:
            InvalidArgument: γ was not measured.
        """
        seconds = self.table_s[self.place(gamma), 1:]
        return float((np.arange(1, self.max_batch + 1) / seconds).max())

    def place(self, gamma: int) -> int:
        """Where γ stands in `gammas`; raises as `throughput`."""
        if gamma not in self.gammas:
            raise InvalidArgument(f"γ {gamma} was not measured; those that were: {', '.join(map(str, self.gammas))}")
        return self.gammas.index(gamma)


@dataclass(frozen=True, slots=True)
class RateStep:
    """A row of the table f(q) (Table I): the γ for arrival rates up to `most` queries a second."""

    most: float
    gamma: int


@dataclass(frozen=True)
class Profile:
    """What policies look up: seconds of a batch by γ, and how often each task's answer is right.

    Attributes:
        latency: of the model.
        accuracies: by task and γ, shares of 0 to 1. It may be a live mapping: tasks come and go.
    """

    latency: GammaLatency
    accuracies: Mapping[str, Mapping[int, float]]

    @property
    def gammas(self) -> tuple[int, ...]:
        """The γ list L, ascending; it holds 0."""
        return self.latency.gammas

    @property
    def max_batch(self) -> int:
        """Images in a batch at most."""
        return self.latency.max_batch

    def latency_s(self, gamma: int, batch: int) -> float:
        """Seconds of a batch, linear between the measured batch sizes.

        Raises:
            InvalidArgument: γ or a batch so large was not measured, or the batch is empty.
        """
        if not 1 <= batch <= self.max_batch:
            raise InvalidArgument(f"no measured latency for {batch} images: the profile covers 1 to {self.max_batch}")
        return float(self.latency.table_s[self.latency.place(gamma), batch])

    def memory_bytes(self, gamma: int, batch: int) -> int:
        """Memory of a batch while it runs, M_b of Eq. (1c); raises `InvalidArgument` for a γ without a measurement."""
        return batch * self.latency.image_bytes[self.latency.place(gamma)]

    def accuracy(self, task: str, gamma: int) -> float:
        """The share of a task's answers that are right at γ, on its profiling part.

        Raises:
            NotFound: there is no such task.
            InvalidArgument: the task has no accuracy for γ.
        """
        try:
            found = self.accuracies[task]
        except KeyError:
            raise NotFound(f"nothing is known of the task '{task}'") from None
        if gamma not in found:
            raise InvalidArgument(f"task '{task}' has no accuracy for γ {gamma}")
        return found[gamma]

    @cached_property
    def rate_table(self) -> tuple[RateStep, ...]:
        """f(q) as in Table I: ascending rates, the last one infinite.

        A rate gets the largest γ whose throughput is at least that; a γ that is no faster than a larger one is never
        chosen. Rates beyond all throughputs get the fastest γ.
        """
        steps: list[RateStep] = []
        for gamma in reversed(self.gammas):
            most = self.latency.throughput(gamma)
            if not steps or most > steps[-1].most:
                steps.append(RateStep(most, gamma))
        return (*steps[:-1], RateStep(float("inf"), steps[-1].gamma))

    def gamma_for_rate(self, rate: float) -> int:
        """f(q): the γ for an arrival rate in queries a second (Algorithm 3, line 1)."""
        return next(step.gamma for step in self.rate_table if rate <= step.most)
