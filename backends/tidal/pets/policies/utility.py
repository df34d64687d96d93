"""Which batch to run if not all waiting queries can be in time: the highest utility beyond the price of its time.

OTAS (Chen et al., 2024) chooses batches by deadlines and by the utility of answers in time; PetS knows the cost of a
batch of given lengths and tasks. Neither published system has both.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from tidal.pets.policies.base import PetsBatch, PetsQuery
from tidal.pets.policies.growing import GrowingBatch
from tidal.pets.policies.order import NEVER, deadline_of, ends
from tidal.pets.profile import Tables

# Size of the batch from which a query's marginal seconds are taken, and their lower bound.
_COMPANY = 32
_LEAST_S = 1e-6
# Number of recent queries that represent future ones.
_REMEMBERED = 128
# Queries that are considered for a batch, and those of them that may be skipped because they do not fit in time.
_LOOKED_AT, _PASSED_OVER = 256, 64


def all_in_time(plan: Iterable[PetsBatch], free: Sequence[float]) -> bool:
    """Whether all batches meet the deadlines of all their queries if they run ordered by deadline.

    Args:
        plan: Batches.
        free: Time in seconds at which each lane is free.
    """
    ordered = sorted((min(map(deadline_of, batch.queries)), batch.seconds) for batch in plan)
    times = ends((seconds for _, seconds in ordered), free)
    return all(end <= deadline for end, (deadline, _) in zip(times, ordered, strict=True))


class UtilitySelector:
    """Selects by utility per second, and by the price of a second: the utility that future queries would gain in it.

    The price is a dual variable as in OTAS: the utility per second below which queries like the recent ones are left
    out, so that the others take no more time than there is. It is 0 if there is time for all.

    Args:
        tables: Costs of the base and of tasks' terms.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        shared = tables.shared
        allowed = np.isfinite(shared)
        many = np.clip(allowed.sum(axis=1), 1, _COMPANY)  # queries, by length
        lengths = np.arange(len(shared))
        first, last = shared[lengths, 1], shared[lengths, many]
        with np.errstate(invalid="ignore"):  # lengths that are not permitted
            self._in_company = np.where(many > 1, (last - first) / np.maximum(many - 1, 1), first)
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_REMEMBERED)

    def note_arrival(self, query: PetsQuery) -> None:
        """Record an arrived query."""
        self._recent.append((query.arrival, self.utility_per_s(query), self._seconds_of(query)))

    def utility_per_s(self, query: PetsQuery) -> float:
        """Utility of a query per second that it takes in a batch of many similar ones."""
        return query.utility / self._seconds_of(query)

    def price(self, now: float) -> float:
        """Price of a second in units of utility."""
        time_s = now - min((arrival for arrival, _, _ in self._recent), default=now)
        for _, utility_per_s, takes in sorted(self._recent, key=lambda each: -each[1]):
            time_s -= takes
            if time_s < 0:
                return utility_per_s
        return 0.0

    def _seconds_of(self, query: PetsQuery) -> float:
        terms = self._tables.terms[self._tables.kind(query.kind), query.length, 1]
        return max(float(self._in_company[query.length] + terms), _LEAST_S)

    def best_batch(self, queries: Iterable[PetsQuery], now: float, tables: Tables) -> PetsBatch:
        """Select the batch to run now.

        Queries are added by descending utility per second, leaving out those that would make another query or
        themselves late. Of the batches along the way, the one with the highest utility beyond the price of its time is
        returned, the larger one of equals.

        Args:
            queries: Waiting queries, at least one; each of them is in time if it runs now and alone.
            now: Present time in seconds.
            tables: Costs on the lane that runs the batch.
        """
        taken = GrowingBatch(tables)
        earliest, utility, passed_over = NEVER, 0.0, 0
        best_batch, most, best_s, price = 0, -NEVER, 0.0, self.price(now)
        for query in heapq.nlargest(_LOOKED_AT, queries, key=self.utility_per_s):
            seconds = taken.seconds_with(query)
            if taken.queries and (seconds == NEVER or now + seconds > min(earliest, deadline_of(query))):
                passed_over += 1
                if passed_over == _PASSED_OVER:
                    break
                continue
            taken.add(query)
            earliest, utility = min(earliest, deadline_of(query)), utility + query.utility
            if utility - price * seconds >= most:
                best_batch, most, best_s = len(taken.queries), utility - price * seconds, seconds
            if len(taken.queries) == tables.max_batch:
                break
        return PetsBatch(taken.queries[:best_batch], None, best_s)
