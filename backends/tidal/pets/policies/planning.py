"""Plans of a queue: batches on the shared base and on merged copies, enough of them for all lanes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from tidal.pets.policies.base import PetsBatch, PetsQuery
from tidal.pets.policies.batching import Batching, alpha_only
from tidal.pets.policies.pool import Pool, batch_seconds
from tidal.pets.profile import IntArray, Tables

# A batch is split for a free lane if the longer part takes at most this share of its time.
_SPLIT_BELOW = 0.9


class Planner:
    """Puts waiting queries into batches.

    Args:
        tables: Costs of the base and of tasks' terms.
        batching: Function that puts queries of the shared base into batches.
    """

    def __init__(self, tables: Tables, batching: Batching) -> None:
        self._tables = tables
        self._copy_tables = tables.without_terms()
        self._batching = batching

    def plan(self, queries: Sequence[PetsQuery], copies: Collection[str]) -> list[PetsBatch]:
        """Batches with the least predicted total time: each task with a copy runs on its copy or with the others.

        Args:
            queries: Waiting queries.
            copies: Names of the tasks that have a merged copy of the base.
        """
        pool = Pool.of(self._tables, ((query.task, query.kind, query.length) for query in queries))
        apart: list[PetsBatch] = []
        rest = np.arange(len(pool))
        shared = self._run(queries, pool, rest, None)
        for task in sorted({query.task for query in queries}.intersection(copies)):
            of_task = np.array([queries[position].task == task for position in rest])
            own = self._run(queries, pool, rest[of_task], task)
            without = self._run(queries, pool, rest[~of_task], None)
            if total_seconds(own) + total_seconds(without) < total_seconds(shared):
                apart, rest, shared = apart + own, rest[~of_task], without
        return apart + shared

    def on_lanes(self, plan: Sequence[PetsBatch], lanes: int) -> list[PetsBatch]:
        """A plan of at least one batch per lane, as far as splitting makes batches shorter.

        Args:
            plan: Batches with the least total time.
            lanes: Number of lanes.
        """
        found = list(plan)
        while len(found) < lanes:
            longest = max(range(len(found)), key=lambda position: found[position].seconds)
            batch = found[longest]
            halves = self._halves(batch)
            if max(half.seconds for half in halves) > _SPLIT_BELOW * batch.seconds:
                break
            found[longest : longest + 1] = halves
        return found

    def _halves(self, batch: PetsBatch) -> list[PetsBatch]:
        """The shorter and the longer queries of a batch; the batch itself if it has only one."""
        if len(batch.queries) < 2:
            return [batch]
        tables = self._tables if batch.copy is None else self._copy_tables
        queries = sorted(batch.queries, key=lambda query: query.length)
        parts = np.array_split(np.arange(len(queries)), 2)
        pool = Pool.of(tables, ((query.task, query.kind, query.length) for query in queries))
        seconds = batch_seconds(pool, parts, tables).tolist()
        return [
            replace(batch, queries=[queries[position] for position in part], seconds=each)
            for part, each in zip(parts, seconds, strict=True)
        ]

    def _run(self, queries: Sequence[PetsQuery], pool: Pool, positions: IntArray, copy: str | None) -> list[PetsBatch]:
        """Batches of some of the queries on the shared base, or on a task's copy, where terms cost nothing."""
        tables, batching = (self._tables, self._batching) if copy is None else (self._copy_tables, alpha_only)
        taken = pool.take(positions)
        plan = batching(taken, tables) if len(taken) > 1 else [np.arange(len(taken))] * len(taken)
        return [
            PetsBatch([queries[position] for position in positions[batch]], copy, seconds)
            for batch, seconds in zip(plan, batch_seconds(taken, plan, tables).tolist(), strict=True)
        ]


def total_seconds(batches: Iterable[PetsBatch]) -> float:
    """Predicted time of batches one after another, in seconds."""
    return sum(batch.seconds for batch in batches)
