"""The lanes of each mode, and what a plan costs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidal.pets.policies.base import PetsBatch, PetsQuery
from tidal.pets.profile import Tables
from tidal.serving.lanes import sum_of_waiting

# Time of a batch on one thread over that on all, for each of these threads: 1.75 times as long on one as on two. An
# assumption, which the measured pace of the modes corrects.
_SECONDS_PER_THREAD = 0.875


@dataclass(frozen=True, slots=True)
class LaneView:
    """Lanes of one mode: costs there, and the time in seconds at which each is free."""

    tables: Tables
    free: Sequence[float]


def narrow_factor(lanes: int) -> float:
    """Predicted time of a batch on one of some lanes with one thread each, over that with as many threads."""
    return max(1.0, _SECONDS_PER_THREAD * lanes)


def waiting_s(
    plan: Sequence[PetsBatch], head: PetsQuery, coming: int, tables: Tables, *, lanes: int, factor: float, behind: int
) -> float:
    """Predicted sum of the times until the planned queries, and others that come, are answered, in seconds.

    Args:
        plan: Batches for this number of lanes, in any order.
        head: Query that those that come resemble.
        coming: Number of queries that are expected soon, which share batches with each other only.
        tables: Costs of the base and of tasks' terms, with all threads.
        lanes: Number of lanes.
        factor: Time of a batch on a lane over that in `tables`.
        behind: Number of waiting queries that are not planned.
    """
    ordered = sorted(plan, key=lambda batch: min(query.arrival for query in batch.queries))
    batches = [(batch.seconds, len(batch.queries)) for batch in ordered]
    permitted = tables.shared[head.length]
    for lane in range(lanes):
        size = (coming + lane) // lanes
        while size and not np.isfinite(permitted[min(size, tables.max_batch + 1)]):
            size -= 1
        if size:
            batches.append((float(permitted[size]), size))
    return factor * sum_of_waiting(batches, lanes=lanes, behind=behind)
