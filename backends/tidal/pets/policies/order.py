"""Which of the planned batches runs first, and which of its queries if not all can meet their deadlines in it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from tidal.pets.policies.base import PetsBatch, PetsQuery
from tidal.pets.policies.growing import GrowingBatch
from tidal.pets.profile import Tables

NEVER = float("inf")


def deadline_of(query: PetsQuery) -> float:
    """Deadline of a query in seconds, infinite if it has none."""
    return NEVER if query.deadline is None else query.deadline


def cheapest(plan: Sequence[PetsBatch]) -> int:
    """Index of the batch with the fewest seconds per query (Smith's rule)."""
    return min(range(len(plan)), key=lambda position: plan[position].seconds / len(plan[position].queries))


def ends(seconds: Iterable[float], free: Sequence[float]) -> Iterator[float]:
    """Times at which consecutive batches end, each of which runs on the lane that is free first.

    Args:
        seconds: Execution times of the batches.
        free: Time at which each lane is free.
    """
    lanes = sorted(free)
    for each in seconds:
        end = lanes[0] + each
        heapq.heapreplace(lanes, end)
        yield end


def first_batch(plan: Sequence[PetsBatch], free: Sequence[float], preferred: int) -> int:
    """Index of the batch to run now.

    It is the preferred one, unless that would make another batch late that would be in time if batches ran by deadline:
    then it is the one with the earliest deadline.

    Args:
        plan: Planned batches.
        free: Time in seconds at which each lane is free, of at least one now.
        preferred: Index of the preferred batch.
    """
    deadlines = [min(map(deadline_of, batch.queries)) for batch in plan]
    urgent = sorted(
        (position for position in range(len(plan)) if deadlines[position] < NEVER), key=deadlines.__getitem__
    )

    def late(positions: Sequence[int]) -> set[int]:
        times = ends((plan[position].seconds for position in positions), free)
        return {position for position, end in zip(positions, times, strict=True) if end > deadlines[position]}

    others = [position for position in urgent if position != preferred]
    if not others or late([preferred, *others]) - {preferred} <= late(urgent):
        return preferred
    return urgent[0]


def in_time(batch: PetsBatch, now: float, tables: Tables, head: PetsQuery | None = None) -> PetsBatch:
    """The batch, or the part of it whose queries all meet their deadlines if it starts now.

    Queries that would be late even alone have no deadline here: on a lane with one thread that is only an estimate.

    The part contains `head`, and as many of the other queries as can join without making any of them late; queries that
    do not make the batch longer join first.

    Args:
        batch: Planned batch.
        now: Present time in seconds.
        tables: Costs of the base and of tasks' terms.
        head: Query that must be in the part and meets its deadline alone; None: the query with the earliest deadline.
    """
    end = now + batch.seconds
    if end <= min(map(deadline_of, batch.queries)):
        return batch

    def due(query: PetsQuery) -> float:
        deadline = deadline_of(query)
        return deadline if now + tables.alone_s(tables.kind(query.kind), query.length) <= deadline else NEVER

    if end <= min(map(due, batch.queries)):
        return batch
    if head is None:
        head = min(batch.queries, key=due)
    others = [query for query in batch.queries if query is not head]
    others.sort(key=lambda query: (max(query.length, head.length), due(query), query.arrival))
    part, seconds, earliest = GrowingBatch(tables, terms=batch.copy is None), 0.0, NEVER
    for query in (head, *others):
        wanted = part.seconds_with(query)
        if part.queries and now + wanted > min(earliest, due(query)):
            continue
        part.add(query)
        seconds, earliest = wanted, min(earliest, due(query))
    return PetsBatch(part.queries, batch.copy, seconds, batch.lane)
