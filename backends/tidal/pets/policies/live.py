"""The live queue of one base: whenever its engine is free, waiting queries are batched and the best batch runs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from tidal.errors import InvalidArgument
from tidal.pets.policies.base import PetsBatch, PetsQuery
from tidal.pets.policies.batching import Batching, joint
from tidal.pets.policies.lanes import LaneView, narrow_factor, waiting_s
from tidal.pets.policies.order import NEVER, cheapest, deadline_of, first_batch, in_time
from tidal.pets.policies.planning import Planner, total_seconds
from tidal.pets.policies.utility import UtilitySelector, all_in_time
from tidal.pets.profile import Tables
from tidal.serving.lanes import LaneMode, LanePolicy


class PetsScheduler:
    """Plans batches of all waiting queries, again after every arrival, and returns one batch at a time.

    One scheduler serves one base; a server with several bases has several. It is not thread-safe: its caller holds a
    lock around every call. Every submitted query leaves once: in a batch, as expired, or by `clear`.

    A returned batch meets the deadlines of all its queries according to the profile; a query that could not meet its
    own deadline even alone is never in one. On a lane with one thread, whose times are estimates, a query may run that
    only all threads would have answered in time.

    With narrow lanes, `LanePolicy` selects whether the next batch runs on all threads or, beside others, on one of
    them. Since the costs of both modes differ by a factor, the plan is the same, except that a plan of fewer batches
    than lanes is split.

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
        narrow: Number of lanes with one thread each besides the one with all threads.
    """

    def __init__(
        self,
        tables: Tables,
        batching: Batching = joint,
        *,
        horizon: int = 512,
        by_utility: bool = False,
        narrow: int = 0,
    ) -> None:
        self._tables = tables
        self._utility = UtilitySelector(tables) if by_utility else None
        self.lanes = LanePolicy(narrow=narrow)
        self._factor = narrow_factor(narrow)
        self._narrow_tables = tables.scaled(self._factor)
        self._ends: dict[int, float] = {}  # predicted end of the batch on each busy lane
        self._planner = Planner(tables, batching)
        self._drain_s = 0.0  # predicted seconds of all waiting queries, when a batch was last chosen
        self._horizon = horizon
        self._waiting: dict[PetsQuery, float] = {}  # with the last time at which each can start in time
        self._latest: list[tuple[float, int, PetsQuery]] = []
        self._numbers = count()
        self._expired: list[PetsQuery] = []
        self._plan: list[PetsBatch] | None = None  # None: not current
        self._copies: frozenset[str] = frozenset()
        self._postponed = False  # whether the oldest query was overdue and not in the last batch

    @property
    def max_concurrency(self) -> int:
        """Maximum number of concurrent batches."""
        return self.lanes.max_concurrency

    @property
    def can_start(self) -> bool:
        """Whether queries wait that a free lane can run."""
        return len(self._waiting) > 0 and self.lanes.free

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
        self.lanes.note_arrival(len(self._waiting))
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
        """The batch to start now; None if no query waits or no lane is free.

        Call `finished` when it has run. Queries that it leaves out because they are too late are returned by `expired`.

        Args:
            now: Present time in seconds.
        """
        self._drop_expired(now)
        if not self.can_start:
            return None
        plan = self._planned()
        mode = self.lanes.select(partial(self._waiting_s, plan), only_wide=self._only_wide(now))
        if mode is None:
            return None
        narrow = mode is self.lanes.narrow
        if narrow:
            plan[:] = self._planner.on_lanes(plan, len(mode.lanes))
        batches = [replace(each, seconds=self._factor * each.seconds) for each in plan] if narrow else plan
        tables = self._narrow_tables if narrow else self._tables
        view = LaneView(tables, [max(now, self._ends.get(lane, now)) for lane in mode.lanes])
        position, batch = self._choose(batches, now, view)
        planned = None
        if position is not None:
            planned = batches[position]
            del plan[position]
        for query in batch.queries:
            del self._waiting[query]
        planned_for = sum(len(each.queries) for each in plan)
        if batch is not planned or 2 * planned_for < min(self._horizon, len(self._waiting)):
            self._plan = None
        lane = self.lanes.start(mode, len(batch.queries))
        self._ends[lane] = now + batch.seconds
        return batch if lane == batch.lane else replace(batch, lane=lane)

    def finished(self, batch: PetsBatch, took: float | None = None) -> None:
        """Report that a batch has run, in `took` seconds, or failed (None): its lane is free."""
        self._ends.pop(batch.lane, None)
        self.lanes.finished(batch.lane, batch.seconds, took)

    def _only_wide(self, now: float) -> bool:
        """Whether only all threads meet the most urgent deadline."""
        while self._latest and self._latest[0][2] not in self._waiting:
            heapq.heappop(self._latest)
        if not self._latest:
            return False
        latest, _, query = self._latest[0]
        return self._late(query, latest, now)

    def _waiting_s(self, plan: Sequence[PetsBatch], mode: LaneMode) -> float:
        """Predicted sum of the waiting times of a plan in a mode."""
        lanes = len(mode.lanes)
        narrow = mode is self.lanes.narrow
        plan = self._planner.on_lanes(plan, lanes) if narrow else plan
        planned = sum(len(batch.queries) for batch in plan)
        head = min((query for batch in plan for query in batch.queries), key=lambda query: query.arrival)
        return waiting_s(
            plan,
            head,
            self.lanes.coming(len(self._waiting)),
            self._tables,
            lanes=lanes,
            factor=self._factor if narrow else 1.0,
            behind=len(self._waiting) - planned,
        )

    def requeue(self, batch: PetsBatch) -> None:
        """Requeue the queries of a batch that the engine could not run; the engine stays in use until `finished`.

        Args:
            batch: The batch that did not run.
        """
        for query in batch.queries:
            self.submit(query)

    def _choose(self, plan: Sequence[PetsBatch], now: float, view: LaneView) -> tuple[int | None, PetsBatch]:
        """The index of the planned batch that runs now, and the part of it that runs; None if it is another batch."""
        positions = {query: position for position, batch in enumerate(plan) for query in batch.queries}
        self._drain_s = total_seconds(plan) * len(self._waiting) / len(positions) / len(view.free)
        candidates = list(positions)
        if self._utility is not None:
            unbounded = [query for query in positions if query.deadline is None]
            candidates = unbounded
            if not any(self._overdue(query, now) for query in unbounded):
                self._postponed = False
                if not all_in_time(plan, view.free):
                    return None, self._utility.best_batch(self._in_time(now, view), now, view.tables)
            if not unbounded:
                # All are in time: time that is saved now is left for queries of higher utility.
                parts = [in_time(batch, now, view.tables) for batch in plan]
                position = first_batch(parts, view.free, cheapest(parts))
                return position, parts[position]
        oldest = min(candidates, key=lambda query: query.arrival)
        overdue = self._overdue(oldest, now)
        if overdue and self._postponed:
            position = positions[oldest]
            batch = in_time(plan[position], now, view.tables, oldest)
        else:
            # The part of each that would run: an urgent query must not be lost because its whole batch is too slow.
            parts = [in_time(batch, now, view.tables) for batch in plan]
            position = first_batch(parts, view.free, positions[oldest])
            batch = parts[position]
        self._postponed = overdue and oldest not in batch.queries
        return position, batch

    def _in_time(self, now: float, view: LaneView) -> Collection[PetsQuery]:
        """The waiting queries that are in time if they run alone; all if none is."""
        if view.tables is self._tables:
            return self._waiting
        found = [query for query, latest in self._waiting.items() if not self._late(query, latest, now)]
        return found or self._waiting

    def _late(self, query: PetsQuery, latest: float, now: float) -> bool:
        """Whether a query that can wait until `latest` for all threads would be late on one."""
        return latest - (self._factor - 1) * self._alone_s(query) < now

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
            self._plan = self._planner.plan(queries, self._copies)
        return self._plan
