"""Waiting queries as arrays, and the predicted time of a plan for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.pets.profile import FloatTable, IntArray, Tables

# Batches in the order in which they run, each as the indices of its queries in the pool.
BatchPlan = list[IntArray]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Waiting queries (Q), one entry per query in each array.

    Attributes:
        lengths: Lengths in tokens.
        tasks: Number of each query's task; equal for queries of the same task.
        kinds: Index of the task's kind in `Tables.terms`.
    """

    lengths: IntArray
    tasks: IntArray
    kinds: IntArray

    @classmethod
    def of(cls, tables: Tables, queries: Iterable[tuple[str, str, int]]) -> Pool:
        """Make a pool.

        Args:
            tables: Costs of the base and of tasks' terms.
            queries: Name of the task, name of the kind, and length in tokens of each query.

        Raises:
            InvalidArgument: A query is too long to run even alone.
        """
        numbers: dict[str, int] = {}
        tasks, kinds, lengths = [], [], []
        for task, kind, length in queries:
            tasks.append(numbers.setdefault(task, len(numbers)))
            kinds.append(tables.kind(kind))
            lengths.append(length)
        longest = max(lengths, default=0)
        if longest > tables.max_length:
            raise InvalidArgument(f"a query has {longest} tokens; the longest that may run has {tables.max_length}")
        return cls(np.array(lengths, np.intp), np.array(tasks, np.intp), np.array(kinds, np.intp))

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, positions: IntArray) -> Pool:
        """Some of the queries, in the given order."""
        return Pool(self.lengths[positions], self.tasks[positions], self.kinds[positions])


def batch_seconds(pool: Pool, plan: Sequence[IntArray], tables: Tables) -> FloatTable:
    """Predicted seconds of each batch of a plan (Eq. 2), [batches]; infinite for a batch that is not permitted.

    A task has one operator in a batch, whichever mini-batches its queries are from: the engine slices a batch by task
    (§3.4.3).

    Args:
        pool: Waiting queries.
        plan: Batches as indices in the pool.
        tables: Costs of the base and of tasks' terms.
    """
    if not plan:
        return np.zeros(0)
    sizes = np.array([len(batch) for batch in plan])
    positions = np.concatenate(plan)
    batch = np.repeat(np.arange(len(plan)), sizes)
    lengths, tasks = pool.lengths[positions], pool.tasks[positions]
    order = np.lexsort((lengths, tasks, batch))
    batch, lengths, tasks, kinds = batch[order], lengths[order], tasks[order], pool.kinds[positions][order]
    last = np.flatnonzero(np.append((batch[1:] != batch[:-1]) | (tasks[1:] != tasks[:-1]), True))  # the longest of each
    queries = np.diff(last, prepend=-1)
    tokens = np.diff(np.cumsum(lengths)[last], prepend=0)  # of each task of a batch
    at = tables.lengths_of(lengths[last], tokens, queries)
    terms = np.bincount(
        batch[last], tables.terms[kinds[last], at, np.minimum(queries, tables.max_batch + 1)], len(plan)
    )
    longest = np.zeros(len(plan), np.intp)
    np.maximum.at(longest, batch, lengths)
    at = tables.lengths_of(longest, np.bincount(batch, lengths, len(plan)).astype(np.intp), sizes)
    shared: FloatTable = tables.shared[at, np.minimum(sizes, tables.max_batch + 1)]
    return shared + terms


def total_seconds(pool: Pool, plan: Sequence[IntArray], tables: Tables) -> float:
    """Predicted seconds of a whole plan, its batches one after another (Eq. 3)."""
    return float(batch_seconds(pool, plan, tables).sum())


def sum_of_waiting(pool: Pool, plan: Sequence[IntArray], tables: Tables) -> float:
    """Sum over queries of the seconds until each is answered, if batches run in the plan's order."""
    return float(
        sum(len(batch) * at for batch, at in zip(plan, batch_seconds(pool, plan, tables).cumsum(), strict=True))
    )
