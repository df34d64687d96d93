"""Which waiting queries share a pass, and which pass runs next. Pure: no clock, no threads, no engines."""

from tidal.pets.policies.base import Batch, Query
from tidal.pets.policies.batching import (
    Batching,
    BySpread,
    Fixed,
    alpha_only,
    best_of,
    beta_only,
    coordinated,
    joint,
    soonest,
)
from tidal.pets.policies.live import PetsScheduler
from tidal.pets.policies.pool import Plan, Pool, batch_seconds, sum_of_waiting, total_seconds

__all__ = [
    "Batch",
    "Batching",
    "BySpread",
    "Fixed",
    "PetsScheduler",
    "Plan",
    "Pool",
    "Query",
    "alpha_only",
    "batch_seconds",
    "best_of",
    "beta_only",
    "coordinated",
    "joint",
    "soonest",
    "sum_of_waiting",
    "total_seconds",
]
