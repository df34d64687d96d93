"""Which waiting queries share a batch: Coordinated Batching (PetS Algorithm 1) and what it is compared with.

Every batching function takes the waiting queries and the tables, and returns batches that neither memory nor the
largest batch forbids; every query is in exactly one of them. `coordinated` knows both parts of a pass's cost but
optimises one at a time; `joint` weighs them against each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidal.pets.policies.pool import BatchPlan, Pool, sum_of_waiting, total_seconds
from tidal.pets.policies.splitting import best_split, windows
from tidal.pets.profile import FloatTable, IntArray, Tables

Batching = Callable[[Pool, Tables], BatchPlan]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Batches of a fixed size in the order of arrival, whatever the queries are; smaller where memory forbids more."""

    size: int

    def __call__(self, pool: Pool, tables: Tables) -> BatchPlan:
        """Split a pool into batches."""
        plan: BatchPlan = []
        start, longest, tokens = 0, 0, 0
        for position, length in enumerate(pool.lengths.tolist()):
            size = position - start + 1
            longest, tokens = max(longest, length), tokens + length
            at = tables.length_of(longest, tokens, size)
            if size > self.size or not np.isfinite(tables.shared[at, min(size, tables.max_batch + 1)]):
                plan.append(np.arange(start, position))
                start, longest, tokens = position, length, length
        if len(pool):
            plan.append(np.arange(start, len(pool)))
        return plan


def alpha_only(pool: Pool, tables: Tables) -> BatchPlan:
    """Batch by the shared cost only: step 2 on single queries (§6.4). Exact if tasks' terms cost nothing."""
    return _inter_task(_Items.queries(pool), tables)


def beta_only(pool: Pool, tables: Tables) -> BatchPlan:
    """Batch queries of one task only, by the cost of its terms: the mini-batches of step 1 (§6.4)."""
    return _intra_task(pool, tables)


def coordinated(pool: Pool, tables: Tables) -> BatchPlan:
    """Coordinated Batching (Algorithm 1): mini-batches by the cost of terms, then batches of them by the shared cost.

    Where Algorithm 1 as printed and its equations differ, this follows what makes the dynamic program correct: Eq. 5
    looks α up at the length of the first mini-batch of a batch, line 23 at that of the last, which is the longest as
    they are sorted; so does this function. `min_cost` is reset for every state, and the list of splits of step 2 has an
    entry for every mini-batch (the printed one has the length of the last task's). Numbers of items are 1-based there.
    """
    return _inter_task(_Items.mini_batches(pool, tables), tables)


@dataclass(frozen=True, slots=True)
class BySpread:
    """The rule of §6.4: Coordinated Batching if lengths vary little, else by the shared cost only.

    Attributes:
        threshold: Standard deviation of the lengths in tokens from which only the shared cost counts.
    """

    threshold: float

    def __call__(self, pool: Pool, tables: Tables) -> BatchPlan:
        """Split a pool into batches."""
        spread = float(pool.lengths.std()) if len(pool) else 0.0
        return (coordinated if spread < self.threshold else alpha_only)(pool, tables)


def best_of(pool: Pool, tables: Tables) -> BatchPlan:
    """The better of Coordinated Batching and batching by the shared cost only, by predicted time."""
    return _cheapest([coordinated(pool, tables), alpha_only(pool, tables)], pool, tables)


def joint(pool: Pool, tables: Tables) -> BatchPlan:
    """Batch by both costs at once; by Eq. 3 never slower than any function above except a fixed size.

    Beyond the paper. One dynamic program over a sequence, with all of Eq. 2 as the cost of a batch. It is exact for
    batches that are consecutive in the sequence. It runs on the two sequences that the other functions split, single
    queries by length and mini-batches by their longest query, and the better plan is returned. Over all partitions it
    is a heuristic.
    """
    return _cheapest(_both_costs(pool, tables, of_all=False), pool, tables)


def soonest(pool: Pool, tables: Tables) -> BatchPlan:
    """Batch by both costs so that the sum of the queries' waiting times is least, in the order of the plan.

    As `joint`, but the cost of a batch is its time multiplied by the number of queries that are not answered before it
    ends: two queries share a pass only if that costs almost nothing, many queries if it saves any time.
    """
    plans = _both_costs(pool, tables, of_all=True)
    return min(plans, key=lambda plan: sum_of_waiting(pool, plan, tables), default=[])


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """The items that batches consist of, each of one task, ascending by the longest query.

    `members` are indices in the pool; the arrays have one entry per item, `tokens` the sums of their lengths.
    """

    members: BatchPlan
    sizes: IntArray
    longest: IntArray
    tokens: IntArray
    tasks: IntArray
    kinds: IntArray

    @classmethod
    def queries(cls, pool: Pool) -> _Items:
        order = np.argsort(pool.lengths, kind="stable")
        members = list(order[:, None])
        lengths = pool.lengths[order]
        return cls(members, np.ones(len(order), np.intp), lengths, lengths, pool.tasks[order], pool.kinds[order])

    @classmethod
    def mini_batches(cls, pool: Pool, tables: Tables) -> _Items:
        found = _intra_task(pool, tables)
        last = np.array([batch[-1] for batch in found], np.intp)  # its longest query
        order = np.argsort(pool.lengths[last], kind="stable")
        members = [found[position] for position in order]
        sizes = np.array([len(each) for each in members], np.intp)
        tokens = np.array([pool.lengths[each].sum() for each in members], np.intp)
        last = last[order]
        return cls(members, sizes, pool.lengths[last], tokens, pool.tasks[last], pool.kinds[last])

    def joined(self, ends: IntArray) -> BatchPlan:
        """Batches of the items up to each end."""
        return [np.concatenate(self.members[start:end]) for start, end in itertools.pairwise([0, *ends.tolist()])]


def _intra_task(pool: Pool, tables: Tables) -> BatchPlan:
    """Steps 0 and 1 of Algorithm 1: the mini-batches of every task, each ascending by length (Eq. 4).

    One dynamic program over all tasks in sequence: a group that spans two tasks has an infinite cost, so none does.
    """
    if not len(pool):
        return []
    order = np.lexsort((pool.lengths, pool.tasks))
    tasks, lengths = pool.tasks[order], pool.lengths[order]
    first = np.flatnonzero(np.append(True, tasks[1:] != tasks[:-1]))
    of_task = np.diff(first, append=len(tasks))
    rank = np.arange(len(tasks)) - np.repeat(first, of_task)  # queries of the task before this one
    most = min(int(of_task.max()), tables.max_batch)
    size = np.arange(most, 0, -1)
    until = np.cumsum(lengths)
    at = tables.lengths_of(lengths[:, None], until[:, None] - windows(until - lengths, most, 0), size)
    costs = tables.terms[pool.kinds[order][:, None], at, size]
    forbidden = ~np.isfinite(tables.shared[at, size]) | (size > rank[:, None] + 1)
    ends = best_split(np.where(forbidden, np.inf, costs))
    return np.split(order, ends[:-1])


def _inter_task(items: _Items, tables: Tables) -> BatchPlan:
    """Step 2 of Algorithm 1: batches of consecutive items by what all tasks share (Eq. 5)."""
    return items.joined(best_split(_shared_costs(items, tables))) if items.members else []


def _shared_costs(items: _Items, tables: Tables) -> FloatTable:
    """[items, most]: α of a batch by its last item and its first, as `best_split` expects it."""
    most = min(len(items.sizes), tables.max_batch)
    after = np.cumsum(items.sizes)
    forbidden = tables.max_batch + 1
    size = after[:, None] - windows(after - items.sizes, most, -forbidden)
    until = np.cumsum(items.tokens)
    tokens = until[:, None] - windows(until - items.tokens, most, 0)
    at = tables.lengths_of(items.longest[:, None], tokens, size)
    np.minimum(size, forbidden, out=size)
    costs: FloatTable = tables.shared[at, size]
    return costs


def _terms_costs(items: _Items, tables: Tables, most: int) -> FloatTable:
    """[items, most]: the sum of β over the tasks of a batch, by its last item and its first.

    For a fixed last item, the batch grows by one item at a time towards the first. The new item's task then has more
    queries, but no longer ones, as items are sorted: the sum grows by a difference in β.
    """
    position = np.arange(len(items.sizes))
    number = np.unique(items.tasks, return_inverse=True)[1].reshape(-1)
    last = np.zeros((len(position), int(number.max()) + 1), np.intp)  # of each task, up to each item
    last[position, number] = position
    last = np.maximum.accumulate(last, axis=0)
    order = np.argsort(number, kind="stable")
    where = position[:, None], windows(number, most, int(number[0]))

    def without(amounts: IntArray) -> IntArray:
        """[items, most]: what the other items of a batch have that are of the task of the item that it grows by."""
        # Up to each item, with the tasks one after another: only differences within a task are used.
        until = np.empty(len(position), np.intp)
        until[order] = np.cumsum(amounts[order])
        found: IntArray = until[last][where] - windows(until, most, int(until[0]))
        return found

    # Arrays are by a batch's last item and the item that it grows by.
    kinds, longest = windows(items.kinds, most, 0), items.longest[last][where]

    def terms(queries: IntArray, tokens: IntArray) -> FloatTable:
        at = tables.lengths_of(longest, tokens, queries)
        found: FloatTable = tables.terms[kinds, at, np.minimum(queries, tables.max_batch + 1)]
        return found

    queries, tokens = without(items.sizes), without(items.tokens)
    growth = terms(queries + windows(items.sizes, most, 0), tokens + windows(items.tokens, most, 0))
    growth -= terms(queries, tokens)
    costs: FloatTable = np.cumsum(growth[:, ::-1], axis=1)[:, ::-1]
    return costs


def _both_costs(pool: Pool, tables: Tables, *, of_all: bool) -> list[BatchPlan]:
    """The best split of both sequences by all of Eq. 2; with `of_all` weighted by the number of waiting queries."""
    plans = []
    for items in (_Items.queries(pool), _Items.mini_batches(pool, tables)) if len(pool) else ():
        costs = _shared_costs(items, tables)
        most = costs.shape[1]
        costs += _terms_costs(items, tables, most)
        if of_all:
            costs *= windows(np.cumsum(items.sizes[::-1])[::-1], most, 1)
        plans.append(items.joined(best_split(costs)))
    return plans


def _cheapest(plans: list[BatchPlan], pool: Pool, tables: Tables) -> BatchPlan:
    return min(plans, key=lambda plan: total_seconds(pool, plan, tables), default=[])
