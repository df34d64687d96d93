"""The live queue of one base: whenever its engine is free, waiting queries are batched and the best batch runs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

import numpy as np

from tidal.errors import InvalidArgument
from tidal.pets.policies.base import PetsBatch, PetsQuery
from tidal.pets.policies.batching import Batching, alpha_only, joint
from tidal.pets.policies.order import NEVER, cheapest, deadline_of, first_batch, in_time
from tidal.pets.policies.pool import IntArray, Pool, batch_seconds
from tidal.pets.policies.utility import UtilitySelector, all_in_time
from tidal.pets.profile import Tables


class PetsScheduler:
    """Plans batches of all waiting queries, again after every arrival, and returns one batch at a time.

    One scheduler serves one base; a server with several bases has several. It is not thread-safe: its caller holds a
    lock around every call. Every submitted query leaves once: in a batch, as expired, or by `clear`.

    A returned batch meets the deadlines of all its queries according to the profile; a query that could not meet its
    own deadline even alone is never in one.

    The batch of the oldest query runs first, whatever its length, so no query waits for cheaper ones that arrived
    later. Queries with a deadline are the exception: if the plan cannot meet a deadline otherwise, the batch with the
    earliest deadline runs first (`first_batch`), but not twice in succession once the oldest query is overdue, that is,
    once it has waited for longer than all waiting queries are predicted to take.

    Smith's rule, the fewest seconds per query first, has the least mean latency if no more queries arrive. Here they
    do, and long queries starve: by the profile of MiniLM and 32 queries of 4 to 64 tokens in flight they wait for
    seconds, and throughput is 14 % lower, since the queue fills up with queries that do not run.

    Args:
        tables: Costs of the base and of tasks' terms, and which batches are permitted.
        batching: Function that puts waiting queries into batches.
        horizon: Largest number of queries that are planned at a time, the most urgent ones: it bounds the planning
            time.
        by_utility: If the planned queries cannot all be in time, run the batch with the highest utility per second
            instead of a batch of the plan; if they can and have deadlines, the batch with the fewest seconds per query.
            Overdue queries without a deadline come first.
    """

    def __init__(
        self,
        tables: Tables,
        batching: Batching = joint,
        *,
        horizon: int = 512,
        by_utility: bool = False,
    ) -> None:
        self._tables = tables
        self._utility = UtilitySelector(tables) if by_utility else None
        self._copy_tables = tables.without_terms()
        self._batching = batching
        self._drain_s = 0.0  # predicted seconds of all waiting queries, when a batch was last chosen
        self._horizon = horizon
        self._waiting: dict[PetsQuery, float] = {}  # with the last time at which each can start in time
        self._latest: list[tuple[float, int, PetsQuery]] = []
        self._numbers = count()
        self._expired: list[PetsQuery] = []
        self._plan: list[PetsBatch] | None = None  # None: the plan is not current
        self._copies: frozenset[str] = frozenset()
        self._running = False
        self._postponed = False  # whether the oldest query was overdue and not in the last batch

    @property
    def can_start(self) -> bool:
        """Whether queries wait and the engine is free."""
        return len(self._waiting) > 0 and not self._running

    @property
    def copies(self) -> frozenset[str]:
        """Names of the tasks that have a merged copy of the base; their queries may run there or on the shared base."""
        return self._copies

    @copies.setter
    def copies(self, tasks: frozenset[str]) -> None:
        self._copies = tasks
        self._plan = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._expired)

    def submit(self, query: PetsQuery) -> None:
        """Add a waiting query.

        Args:
            query: The query.

        Raises:
            InvalidArgument: The query is too long to run even alone.
        """
        if not 1 <= query.length <= self._tables.max_length:
            raise InvalidArgument(
                f"a query has {query.length} tokens; accepted are 1 to {self._tables.max_length} here"
            )
        latest = deadline_of(query) - self._alone_s(query)
        if latest < NEVER:
            heapq.heappush(self._latest, (latest, next(self._numbers), query))
        self._waiting[query] = latest
        if self._utility is not None:
            self._utility.note_arrival(query)
        self._plan = None

    def clear(self) -> None:
        """Drop all waiting queries."""
        self._waiting.clear()
        self._latest.clear()
        self._expired.clear()
        self._plan = None

    def expired(self, now: float) -> list[PetsQuery]:
        """Remove and return the queries that would miss their deadline even if they ran now and alone.

        Args:
            now: Present time in seconds.
        """
        self._drop_expired(now)
        late, self._expired = self._expired, []
        return late

    def prepare(self) -> None:
        """Plan for waiting queries before the engine is free, so that `next_batch` has less to do."""
        self._planned()

    def next_batch(self, now: float) -> PetsBatch | None:
        """The batch to start now; None if no query waits or the engine is not free.

        Call `finished` when it has run. Queries that it leaves out because they are too late are returned by `expired`.

        Args:
            now: Present time in seconds.
        """
        self._drop_expired(now)
        if not self.can_start:
            return None
        plan = self._planned()
        position, batch = self._choose(plan, now)
        planned = plan.pop(position) if position is not None else None
        for query in batch.queries:
            del self._waiting[query]
        planned_for = sum(len(each.queries) for each in plan)
        if batch is not planned or 2 * planned_for < min(self._horizon, len(self._waiting)):
            self._plan = None
        self._running = True
        return batch

    def finished(self) -> None:
        """Report that the batch has run or failed: the engine is free."""
        self._running = False

    def requeue(self, batch: PetsBatch) -> None:
        """Requeue the queries of a batch that the engine could not run; the engine stays in use until `finished`.

        Args:
            batch: The batch that did not run.
        """
        for query in batch.queries:
            self.submit(query)

    def _choose(self, plan: Sequence[PetsBatch], now: float) -> tuple[int | None, PetsBatch]:
        """The index of the planned batch that runs now, and the part of it that runs; None if it is another batch."""
        positions = {query: position for position, batch in enumerate(plan) for query in batch.queries}
        self._drain_s = _seconds(plan) * len(self._waiting) / len(positions)
        candidates = list(positions)
        if self._utility is not None:
            unbounded = [query for query in positions if query.deadline is None]
            candidates = unbounded
            if not any(self._overdue(query, now) for query in unbounded):
                self._postponed = False
                if not all_in_time(plan, now):
                    return None, self._utility.best_batch(self._waiting, now)
            if not unbounded:
                # All are in time: time that is saved now is left for queries of higher utility.
                parts = [in_time(batch, now, self._tables) for batch in plan]
                position = first_batch(parts, now, cheapest(parts))
                return position, parts[position]
        oldest = min(candidates, key=lambda query: query.arrival)
        overdue = self._overdue(oldest, now)
        if overdue and self._postponed:
            position = positions[oldest]
            batch = in_time(plan[position], now, self._tables, oldest)
        else:
            # The part of each that would run: an urgent query must not be lost because its whole batch is too slow.
            parts = [in_time(batch, now, self._tables) for batch in plan]
            position = first_batch(parts, now, positions[oldest])
            batch = parts[position]
        self._postponed = overdue and oldest not in batch.queries
        return position, batch

    def _overdue(self, query: PetsQuery, now: float) -> bool:
        """Whether a query has waited for longer than all waiting queries are predicted to take."""
        return now - query.arrival > self._drain_s

    def _alone_s(self, query: PetsQuery) -> float:
        return self._tables.alone_s(self._tables.kind(query.kind), query.length)

    def _drop_expired(self, now: float) -> None:
        while self._latest and self._latest[0][0] < now:
            query = heapq.heappop(self._latest)[2]
            if self._waiting.pop(query, None) is not None:
                self._expired.append(query)
                self._plan = None
        if len(self._latest) > 2 * len(self._waiting) + 64:
            self._latest = [entry for entry in self._latest if entry[2] in self._waiting]
            heapq.heapify(self._latest)

    def _planned(self) -> list[PetsBatch]:
        if self._plan is None:
            queries: Sequence[PetsQuery] = list(self._waiting)
            if len(queries) > self._horizon:
                # A query without a deadline can wait until it is overdue.
                queries = heapq.nsmallest(
                    self._horizon,
                    queries,
                    key=lambda query: min(query.arrival + self._drain_s, self._waiting[query]),
                )
            self._plan = self._batches(queries)
        return self._plan

    def _batches(self, queries: Sequence[PetsQuery]) -> list[PetsBatch]:
        """Batches with the least predicted total time: each task with a copy runs on its copy or with the others."""
        pool = Pool.of(self._tables, ((query.task, query.kind, query.length) for query in queries))
        apart: list[PetsBatch] = []
        rest = np.arange(len(pool))
        shared = self._run(queries, pool, rest, None)
        for task in sorted(self._copies & {query.task for query in queries}):
            of_task = np.array([queries[position].task == task for position in rest])
            own = self._run(queries, pool, rest[of_task], task)
            without = self._run(queries, pool, rest[~of_task], None)
            if _seconds(own) + _seconds(without) < _seconds(shared):
                apart, rest, shared = apart + own, rest[~of_task], without
        return apart + shared

    def _run(self, queries: Sequence[PetsQuery], pool: Pool, positions: IntArray, copy: str | None) -> list[PetsBatch]:
        """Batches of some of the queries on the shared base, or on a task's copy, where terms cost nothing."""
        tables, batching = (self._tables, self._batching) if copy is None else (self._copy_tables, alpha_only)
        taken = pool.take(positions)
        plan = batching(taken, tables) if len(taken) > 1 else [np.arange(len(taken))] * len(taken)
        return [
            PetsBatch([queries[position] for position in positions[batch]], copy, seconds)
            for batch, seconds in zip(plan, batch_seconds(taken, plan, tables).tolist(), strict=True)
        ]


def _seconds(batches: Sequence[PetsBatch]) -> float:
    return sum(batch.seconds for batch in batches)
