"""The operations of a batch as numbers: which rows have which terms, and where these are in memory.

A plan consists of a layout, equal for batches with the same operations, and of the numbers that these use. All numbers
are copied to the device at once, and a captured graph of one layout runs any batch with that layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tidal.pets.engine.contract import Ids
from tidal.pets.terms import Activation
from tidal.pets.torch_engine.pools import ZERO_ROW
from tidal.pets.torch_engine.sparse import SparseRows
from tidal.pets.torch_engine.tasks import Numbers, Ranks, TorchTask

GroupType = Literal["sparse", "low_rank", "bias", "bottleneck", "after_norm"]
Tasks = Sequence[TorchTask | None]


class Steps(NamedTuple):
    """Multiples to which sizes are rounded up, so that more batches have equal layouts.

    Attributes:
        tokens: Multiple of the number of tokens.
        ranks: Multiple of ranks.
        rows: Rounds the number of rows of a group.
    """

    tokens: int = 1
    ranks: int = 1
    rows: Callable[[int], int] = int


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


EXACT = Steps()
ROUNDED = Steps(tokens=8, ranks=8, rows=power_of_two)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a part that have the same type of terms.

    Attributes:
        type: Type of the terms.
        activation: Activation of bottlenecks, or None.
        layers: Numbers of the linear layers where any of the rows has the term.
        rows: Number of rows, including padding to a rounded number.
        rank: Largest rank, rounded.
        every: Whether these are all rows of the batch in their order; rows without the term add nothing.
    """

    type: GroupType
    activation: Activation | None
    layers: tuple[int, ...]
    rows: int
    rank: int
    every: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The operations of a batch.

    Attributes:
        rows: Number of rows.
        tokens: Number of tokens of every row, padding included.
        types: Whether token types are read.
        all_tokens: Whether the hidden states of all tokens are computed.
        norms: Number of normalisations with weights per row; 0 if all rows use the base's.
        parts: Groups of each part in the order in which they are computed; parts may run concurrently.
    """

    rows: int
    tokens: int
    types: bool
    all_tokens: bool
    norms: int
    parts: tuple[tuple[Group, ...], ...]


@dataclass(frozen=True, slots=True)
class TorchBatchPlan:
    """A planned batch.

    Attributes:
        layout: Operations of the batch.
        numbers: All numbers that the layout does not have, int64, in the order in which `bound.bind` reads them.
        sparse: Sparse differences of the rows of each part's sparse group, if it has one.
    """

    layout: Layout
    numbers: Numbers
    sparse: tuple[tuple[SparseRows | None, ...], ...]


def make_plan(
    tasks: Tasks,
    ids: npt.NDArray[np.int32],
    lengths: Ids,
    types: npt.NDArray[np.int32] | None,
    *,
    parts: Sequence[Sequence[int]],
    shared_norms: Numbers,
    empty_starts: int = 0,
    longest: int,
    steps: Steps = EXACT,
    all_tokens: bool = False,
) -> TorchBatchPlan:
    """Plan a batch.

    Args:
        tasks: Task of each row; None is the base alone.
        ids: Token ids [rows, tokens].
        lengths: Number of real tokens [rows].
        types: Token types [rows, tokens], or None.
        parts: Rows of each part that may run concurrently; together all rows that have a task.
        shared_norms: Row numbers of the base's weights and biases, [normalisations, 2].
        empty_starts: Address of starts that are all 0, for rows without sparse differences; 0 if addresses are not
            used.
        longest: Largest number of tokens of a row.
        steps: Multiples to which sizes are rounded up.
        all_tokens: Whether the hidden states of all tokens are computed.
    """
    tokens = min(longest, -(-int(lengths.max()) // steps.tokens) * steps.tokens)
    numbers = [_padded(ids, tokens), np.asarray(lengths, np.int64)]
    if types is not None:
        numbers.append(_padded(types, tokens))
    norms = 0
    if any(task is not None and task.norms is not None for task in tasks):
        norms = len(shared_norms)
        of_rows = [shared_norms if task is None or task.norms is None else task.norms for task in tasks]
        numbers.append(np.stack(of_rows, -1).reshape(-1))
    planned = [_Part(tasks, rows, len(parts) == 1, empty_starts, steps) for rows in parts]
    layout = Layout(
        rows=len(tasks),
        tokens=tokens,
        types=types is not None,
        all_tokens=all_tokens,
        norms=norms,
        parts=tuple(tuple(part.groups) for part in planned),
    )
    for part in planned:
        numbers += part.numbers
    return TorchBatchPlan(
        layout, np.concatenate([each.reshape(-1) for each in numbers]), tuple(part.sparse for part in planned)
    )


class _Part:
    def __init__(self, tasks: Tasks, rows: Sequence[int], alone: bool, empty_starts: int, steps: Steps) -> None:
        self._batch, self._alone, self._steps = len(tasks), alone, steps
        self.groups: list[Group] = []
        self.numbers: list[Numbers] = []
        self.sparse: tuple[SparseRows | None, ...] = ()
        mine = [(row, task) for row in rows if (task := tasks[row]) is not None]
        self._add_sparse([(row, task.sparse) for row, task in mine if task.sparse is not None], empty_starts)
        self._add_ranks("low_rank", None, [(row, task.low_rank) for row, task in mine if task.low_rank is not None])
        biased = [(row, task.bias) for row, task in mine if task.bias is not None]
        if biased:
            table = np.stack([bias for _, bias in biased])
            self._add("bias", [row for row, _ in biased], table != ZERO_ROW, [table])
        for after_norm, activation in sorted({key for _, task in mine for key in task.bottlenecks}):
            key = after_norm, activation
            found = [(row, task.bottlenecks[key]) for row, task in mine if key in task.bottlenecks]
            self._add_ranks("after_norm" if after_norm else "bottleneck", activation, found)

    def _add_sparse(self, found: Sequence[tuple[int, SparseRows]], empty_starts: int) -> None:
        if not found:
            return
        own = np.stack([task.spans[:, 0] >= 0 for _, task in found])
        addresses = np.stack([task.pointers(empty_starts) for _, task in found])
        positions = self._add(
            "sparse", [row for row, _ in found], own, list(np.moveaxis(addresses, -1, 0)), fill=empty_starts
        )
        sparse: list[SparseRows | None] = [None] * self.groups[-1].rows
        for position, (_, task) in zip(positions, found, strict=True):
            sparse[position] = task
        self.sparse = tuple(sparse)

    def _add_ranks(self, type: GroupType, activation: Activation | None, found: Sequence[tuple[int, Ranks]]) -> None:
        if not found:
            return
        rank = np.stack([ranks.rank for _, ranks in found])
        names = ("rank", "down", "up") if type == "low_rank" else ("rank", "down", "up", "gate", "after")
        tables = [np.stack([getattr(ranks, name) for _, ranks in found]) for name in names]
        most = -(-int(rank.max()) // self._steps.ranks) * self._steps.ranks
        self._add(type, [row for row, _ in found], rank > 0, tables, activation=activation, rank=most)

    def _add(
        self,
        type: GroupType,
        rows: Sequence[int],
        own: npt.NDArray[np.bool_],
        tables: Iterable[Numbers],
        *,
        activation: Activation | None = None,
        rank: int = 0,
        fill: int = ZERO_ROW,
    ) -> Sequence[int]:
        """Add a group of rows with tables [rows, layers]; returns the index of each row in the group."""
        layers = np.flatnonzero(own.any(0))
        count = self._steps.rows(len(rows))
        # Other parts may run concurrently: only a single part may write to all rows.
        every = self._alone and count >= self._batch
        if every:
            count, positions = self._batch, list(rows)
        else:
            positions = list(range(len(rows)))
            # Padding repeats the first row, and adds nothing to it.
            self.numbers.append(np.array([*rows, *[rows[0]] * (count - len(rows))], np.int64))
        for table in tables:
            filled = np.full((len(layers), count), fill, np.int64)
            filled[:, positions] = table[:, layers].T
            self.numbers.append(filled)
        self.groups.append(Group(type, activation, tuple(layers.tolist()), count, rank, every))
        return positions


def _padded(array: npt.NDArray[np.int32], tokens: int) -> Numbers:
    """The first `tokens` columns, padded with columns of zeros if there are fewer."""
    kept = array[:, :tokens].astype(np.int64)
    return np.pad(kept, [(0, 0), (0, tokens - kept.shape[1])])
