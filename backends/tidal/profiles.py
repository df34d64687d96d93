"""Measured latencies, interpolated but never extrapolated. Builders measure them, services and policies use them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.errors import InvalidArgument


class LatencyProfile(BaseModel):
    """Latency of a set of engines by padded input length and batch size, measured on the device that serves it.

    `median_ms` and `p95_ms` have one row per length and one column per batch size, in milliseconds for the whole batch.
    Rows of long inputs may be shorter: large batches of them are neither measured nor served.
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
        for name, grid in (("median_ms", self.median_ms), ("p95_ms", self.p95_ms)):
            check_grid(name, self.lengths, self.batches, grid)
            if any(not 0 < value < float("inf") for row in grid for value in row):
                raise ValueError(f"{name} must hold positive, finite milliseconds")
        if [len(row) for row in self.median_ms] != [len(row) for row in self.p95_ms]:
            raise ValueError("median_ms and p95_ms must have rows of the same sizes")
        return self

    @property
    def max_length(self) -> int:
        """Maximum profiled input length in tokens."""
        return self.lengths[-1]

    @property
    def max_batch(self) -> int:
        """Maximum profiled batch size."""
        return self.batches[-1]

    def latency_ms(self, length: int, batch: int = 1) -> float:
        """Median latency of a batch in milliseconds, interpolated bilinearly between measured points.

        A length below the smallest measured one has the latency of that one.

        Args:
            length: Padded length in tokens.
            batch: Batch size.

        Raises:
            InvalidArgument: `length` or `batch` exceeds what was measured, or is not positive.
        """
        if 1 <= length <= self.max_length and 1 <= batch <= self.max_batch:
            latency = float(self.table_ms[length, batch])
            if latency < float("inf"):
                return latency
        raise InvalidArgument(
            f"no latency was measured for length {length} and batch size {batch}: the profile covers lengths 1 to "
            f"{self.max_length} and batch sizes 1 to {self.max_batch} (fewer for long inputs)"
        )

    @cached_property
    def table_ms(self) -> npt.NDArray[np.float64]:
        """Median latency in milliseconds by length and batch size, shape [max_length + 1, max_batch + 1].

        It is infinite where nothing was measured, and in row and column 0.
        """
        return interpolated(self.lengths, self.batches, self.median_ms)


def check_grid(name: str, lengths: Sequence[int], batches: Sequence[int], grid: Sequence[Sequence[float]]) -> None:
    """Check a grid against its axes.

    Lengths and batch sizes ascend. There is one row per length; rows of long inputs may be shorter.

    Args:
        name: Name of the grid, for the error.
        lengths: Lengths in tokens.
        batches: Batch sizes.
        grid: Values by length and batch size.

    Raises:
        ValueError: The grid is wrong; for a model's validator.
    """
    for axis_name, axis in (("lengths", lengths), ("batches", batches)):
        if any(b <= a for a, b in itertools.pairwise(axis)) or axis[0] < 1:
            raise ValueError(f"{axis_name} must be positive and ascending, got {axis}")
    if batches[0] != 1:
        raise ValueError(f"batches must begin with 1, got {batches}")
    sizes = [len(row) for row in grid]
    if len(sizes) != len(lengths) or max(sizes) > len(batches) or min(sizes) < 1:
        raise ValueError(f"{name} must have one row per length, each with columns for the first batch sizes")
    if sizes != sorted(sizes, reverse=True):
        raise ValueError(f"{name} must not have longer rows for longer inputs, got rows of {sizes}")
    if sizes[0] != len(batches):
        raise ValueError(
            f"{name} must have a column for each of the {len(batches)} batch sizes in its longest row, "
            f"got rows of {sizes}"
        )


def interpolated(
    lengths: Sequence[int], batches: Sequence[int], grid: Sequence[Sequence[float]]
) -> npt.NDArray[np.float64]:
    """Interpolate a grid bilinearly between measured points.

    Args:
        lengths: Lengths in tokens, ascending.
        batches: Batch sizes, ascending.
        grid: Values by length and batch size.

    Returns:
        Values by length and batch size, shape [longest + 1, largest + 1]: infinite where nothing was measured, and in
        row and column 0; below the first length, the values of the first length.
    """
    sizes = np.arange(1, batches[-1] + 1)
    by_batch = np.stack([np.interp(sizes, batches[: len(row)], row, right=np.inf) for row in grid])
    tokens = np.arange(1, lengths[-1] + 1)
    table = np.full((lengths[-1] + 1, batches[-1] + 1), np.inf)
    for column in range(len(sizes)):
        measured = np.isfinite(by_batch[:, column])
        known = np.asarray(lengths)[measured]
        table[1:, column + 1] = np.interp(tokens, known, by_batch[measured, column], right=np.inf)
    return table
