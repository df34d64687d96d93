"""Measured latencies, looked up without silent extrapolation."""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.errors import InvalidArgument


class LatencyProfile(BaseModel):
    """Latency of one engine set by padded input length and batch size, measured on the device that serves it.

    Shapes: `median_ms` and `p95_ms` are [len(lengths)][len(batches)], in milliseconds for the whole batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lengths: tuple[int, ...] = Field(min_length=1, description="padded lengths in tokens, ascending")
    batches: tuple[int, ...] = Field(min_length=1, description="batch sizes, ascending, the first is 1")
    median_ms: tuple[tuple[float, ...], ...]
    p95_ms: tuple[tuple[float, ...], ...]
    threads: int = Field(ge=1, description="threads that one engine used while it was measured")
    concurrency: int = Field(1, ge=1, description="engines that ran at the same time while it was measured")

    @model_validator(mode="after")
    def _check(self) -> LatencyProfile:
        for name, axis in (("lengths", self.lengths), ("batches", self.batches)):
            if any(b <= a for a, b in itertools.pairwise(axis)) or axis[0] < 1:
                raise ValueError(f"{name} must be positive and ascending, got {axis}")
        if self.batches[0] != 1:
            raise ValueError(f"batches must begin with 1, got {self.batches}")
        for name, grid in (("median_ms", self.median_ms), ("p95_ms", self.p95_ms)):
            if len(grid) != len(self.lengths) or any(len(row) != len(self.batches) for row in grid):
                raise ValueError(f"{name} must have one row a length and one column a batch size")
            if any(not 0 < value < float("inf") for row in grid for value in row):
                raise ValueError(f"{name} must hold positive, finite milliseconds")
        return self

    @property
    def max_length(self) -> int:
        """Longest profiled input in tokens."""
        return self.lengths[-1]

    @property
    def max_batch(self) -> int:
        """Largest profiled batch."""
        return self.batches[-1]

    def latency_ms(self, length: int, batch: int = 1) -> float:
        """Median latency of a batch, bilinear between measured points.

        A length below the smallest measured one costs what that one costs (a shorter input never costs more).

        Raises:
            InvalidArgument: `length` or `batch` lies above what was measured, or is not positive.
        """
        if not 1 <= length <= self.max_length or not 1 <= batch <= self.max_batch:
            raise InvalidArgument(
                f"no measured latency for length {length} and batch {batch}: the profile covers lengths 1 to "
                f"{self.max_length} and batches 1 to {self.max_batch}"
            )
        return float(self.table_ms[length, batch])

    @cached_property
    def table_ms(self) -> npt.NDArray[np.float64]:
        """Median latency by length and batch, shape [max_length + 1, max_batch + 1]; row and column 0 are NaN."""
        grid = np.asarray(self.median_ms)
        batches = np.arange(1, self.max_batch + 1)
        by_batch = np.stack([np.interp(batches, self.batches, row) for row in grid])
        lengths = np.arange(1, self.max_length + 1)
        table = np.full((self.max_length + 1, self.max_batch + 1), np.nan)
        for column in range(self.max_batch):
            table[1:, column + 1] = np.interp(lengths, self.lengths, by_batch[:, column])
        return table
