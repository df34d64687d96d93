"""Measured costs of a frozen encoder and of tasks' terms, and the tables in which batching looks them up.

A batch of N queries, the longest of L tokens, takes α[N][L] for the shared encoder, and β[kind][n][l] for the terms of
each of its tasks, where the task has n queries, the longest of l tokens (PetS §4.1). An engine that does not pad takes
α[N][L] for N queries of L tokens in the mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.errors import InvalidArgument
from tidal.profiles import LatencyProfile, check_grid, interpolated

FloatTable = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


class Grid(BaseModel):
    """A measured quantity by padded length and number of queries, bilinear between measured points.

    `values` has one row per length and one column per number of queries; rows of long inputs may be shorter. Inputs
    below the first length have that length's values; beyond the last length or number there are none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lengths: tuple[int, ...] = Field(min_length=1, description="padded lengths in tokens, ascending")
    batches: tuple[int, ...] = Field(min_length=1, description="numbers of queries, ascending from 1")
    values: tuple[tuple[float, ...], ...]

    @model_validator(mode="after")
    def _check(self) -> Grid:
        check_grid("values", self.lengths, self.batches, self.values)
        if any(not 0 <= value < float("inf") for row in self.values for value in row):
            raise ValueError("values must be finite numbers, none below 0")
        return self

    @cached_property
    def table(self) -> FloatTable:
        """Values by length and number of queries; infinite where nothing was measured, and in row and column 0."""
        return interpolated(self.lengths, self.batches, self.values)

    def at(self, length: int, batch: int) -> float:
        """The value for a number of queries.

        Args:
            length: Length of the longest query in tokens.
            batch: Number of queries.

        Raises:
            InvalidArgument: It is beyond what was measured.
        """
        if 1 <= length <= self.lengths[-1] and 1 <= batch <= self.batches[-1]:
            value = float(self.table[length, batch])
            if value < float("inf"):
                return value
        raise InvalidArgument(
            f"nothing was measured for {batch} queries of {length} tokens: the grid covers lengths 1 to "
            f"{self.lengths[-1]} and 1 to {self.batches[-1]} queries, fewer for long inputs"
        )


class OperatorProfile(BaseModel):
    """Arithmetic and reached bandwidth (ω) of the task operators of one kind on a GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flops_per_token: float = Field(gt=0, description="floating point operations of all layers' terms for one token")
    gigabytes_per_s: Grid


class StreamRule(BaseModel):
    """On how many streams the task operators of a batch run (PetS §6.3.3)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threshold_tokens: float = Field(
        ge=0, description="mean number of tokens per task from which many streams are faster"
    )
    few: int = Field(2, ge=1, description="number of streams below the threshold")
    many: int = Field(32, ge=1, description="number of streams from the threshold on")


class PetsProfile(BaseModel):
    """Costs of one base and of the kinds of task that it serves, measured on the device that serves them.

    Raises:
        ValidationError: `terms_ms` or `memory_bytes` does not cover all lengths and batches of `shared`, or `operators`
            names kinds that `terms_ms` does not have.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shared: LatencyProfile = Field(description="α: the encoder without any task's terms")
    terms_ms: Mapping[str, Grid] = Field(min_length=1, description="β by kind: milliseconds of one task's terms")
    memory_bytes: Grid = Field(description="memory of a batch's activations in bytes")
    operators: Mapping[str, OperatorProfile] = Field({}, description="operators by kind, for the streams of a GPU")
    streams: StreamRule | None = None
    packed: bool = Field(
        False, description="whether batches have no padding: α is then that of as many queries of the mean length"
    )
    spread_tokens: float | None = Field(
        None,
        ge=0,
        description="standard deviation of lengths in tokens from which batching by the shared cost alone is better "
        "(§6.4)",
    )

    @model_validator(mode="after")
    def _check(self) -> PetsProfile:
        grids = {f"terms_ms of {kind}": grid for kind, grid in self.terms_ms.items()}
        for name, grid in {**grids, "memory_bytes": self.memory_bytes}.items():
            if not _covers(grid, self.shared):
                raise ValueError(
                    f"{name} must cover the lengths and batches of 'shared': "
                    f"{_extent(self.shared.lengths, self.shared.batches, self.shared.median_ms)}, got "
                    f"{_extent(grid.lengths, grid.batches, grid.values)}"
                )
        unknown = sorted(set(self.operators) - set(self.terms_ms))
        if unknown:
            raise ValueError(f"operators names {', '.join(unknown)}, which terms_ms does not have")
        return self

    def tables(self, *, max_batch: int | None = None, memory_bytes: int | None = None) -> Tables:
        """Make the tables of all permitted batches.

        Args:
            max_batch: Largest number of queries per batch; None: the largest that was measured.
            memory_bytes: Memory in bytes that a batch's activations may take; None: no limit.

        Raises:
            InvalidArgument: `max_batch` is below 1, or the memory permits not even the smallest batch.
        """
        if max_batch is not None and max_batch < 1:
            raise InvalidArgument(f"max_batch is {max_batch}; accepted is 1 or more")
        shape = self.shared.table_ms.shape
        most = shape[1] - 1 if max_batch is None else min(max_batch, shape[1] - 1)
        # More or longer queries never take less memory, whatever noise shows: permitted batches have no gaps.
        memory = np.maximum.accumulate(self.memory_bytes.table[1 : shape[0], 1 : most + 1], axis=0)
        memory = np.maximum.accumulate(memory, axis=1)
        shared = np.full((shape[0], most + 2), np.inf)
        shared[1:, 1:-1] = self.shared.table_ms[1:, 1 : most + 1] / 1e3
        if memory_bytes is not None:
            shared[1:, 1:-1][memory > memory_bytes] = np.inf
        allowed = np.isfinite(shared)
        if not allowed.any():
            raise InvalidArgument(
                f"{memory_bytes} bytes of memory permit no batch; a single short query takes {memory[0, 0]:.0f}"
            )
        terms = np.zeros((len(self.terms_ms) + 1, *shared.shape))
        for position, grid in enumerate(self.terms_ms.values()):
            terms[position, :, :-1][allowed[:, :-1]] = grid.table[: shape[0], : most + 1][allowed[:, :-1]] / 1e3
        if self.packed:
            _extend(terms[:-1], allowed[:, 1:-1].sum(axis=1))
        terms[-1] = terms[:-1].max(0)
        return Tables(tuple(self.terms_ms), shared, terms, packed=self.packed)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Costs in seconds as arrays, for lookups of many batches at once.

    Attributes:
        kinds: Names of the measured kinds, in the order of `terms`.
        shared: Seconds of the encoder (α) by length and number of queries, [max_length + 1, max_batch + 2]; infinite
            for batches that are not permitted: beyond what was measured or fits, in row 0, in column 0, and in the last
            column, which stands for more queries than are permitted.
        terms: Seconds of a task's terms (β) by kind, length and the task's number of queries, [kinds + 1,
            max_length + 1, max_batch + 2]; where `shared` is infinite 0, or without padding in proportion to the
            queries. The last entry is the maximum over kinds and stands for kinds that were not measured.
        packed: Whether batches have no padding. A task of a batch may then have more long queries than a batch of them
            alone, if the others are short.
    """

    kinds: tuple[str, ...]
    shared: FloatTable
    terms: FloatTable
    packed: bool = False

    @property
    def max_batch(self) -> int:
        """Largest number of queries per batch."""
        return self.shared.shape[1] - 2

    @property
    def max_length(self) -> int:
        """Length in tokens of the longest query that may run alone."""
        return int(np.flatnonzero(np.isfinite(self.shared[:, 1]))[-1])

    def length_of(self, longest: int, tokens: int, queries: int) -> int:
        """Length at which queries are looked up: that of the longest, without padding the mean, rounded up.

        Args:
            longest: Length of the longest query in tokens.
            tokens: Sum of the lengths.
            queries: Number of queries, at least 1.
        """
        return -(-tokens // queries) if self.packed else longest

    def lengths_of(self, longest: IntArray, tokens: IntArray, queries: IntArray) -> IntArray:
        """The same for many batches or tasks of batches; a number of queries may be 0."""
        if not self.packed:
            return longest
        found: IntArray = np.minimum(-(-tokens // np.maximum(queries, 1)), len(self.shared) - 1)
        return found

    def kind(self, name: str) -> int:
        """Index of a kind in `terms`; the last entry, the most expensive kind, for a kind that was not measured."""
        return self.kinds.index(name) if name in self.kinds else len(self.kinds)

    def without_terms(self, kept: Collection[str] = ()) -> Tables:
        """The same tables for models that have tasks' terms merged into their weights.

        Args:
            kept: Kinds whose terms cannot be merged and keep their cost.
        """
        terms = np.zeros_like(self.terms)
        for name in set(kept).intersection(self.kinds):
            terms[self.kind(name)] = self.terms[self.kind(name)]
        return replace(self, terms=terms)

    def scaled(self, factor: float) -> Tables:
        """The same tables with all costs multiplied, for which every batching function makes the same plans."""
        return self if factor == 1 else replace(self, shared=self.shared * factor, terms=self.terms * factor)

    def alone_s(self, kind: int, length: int) -> float:
        """Seconds of one query in a batch of its own.

        Args:
            kind: Index of the query's kind in `terms`.
            length: Length of the query in tokens.
        """
        return float(self.shared[length, 1] + self.terms[kind, length, 1])


def _extend(terms: FloatTable, measured: IntArray) -> None:
    """Fill in terms beyond the largest measured number of queries, in proportion to the number.

    Args:
        terms: Terms by kind, length and number of queries.
        measured: The largest measured number by length.
    """
    for length, most in enumerate(measured.tolist()):
        if most:
            terms[:, length, most + 1 :] = terms[:, length, most, None] * np.arange(most + 1, terms.shape[2]) / most


def _extent(lengths: Sequence[int], batches: Sequence[int], values: Sequence[Sequence[float]]) -> str:
    """Describe the largest batch at each length of a table."""
    return ", ".join(f"{batches[len(row) - 1]} of {length} tokens" for length, row in zip(lengths, values, strict=True))


def _covers(grid: Grid, shared: LatencyProfile) -> bool:
    # Not the cached tables: a model that holds arrays cannot be compared.
    table = interpolated(grid.lengths, grid.batches, grid.values)
    wanted = interpolated(shared.lengths, shared.batches, shared.median_ms)
    rows, columns = wanted.shape
    if table.shape[0] < rows or table.shape[1] < columns:
        return False
    return bool(np.isfinite(table[:rows, :columns])[np.isfinite(wanted)].all())
