"""Which waiting queries share a pass, and which pass runs next. Pure: no clock, no threads, no engines.

Imports `tidal.pets.profile` and errors only; imported by the service, engines (streams), builders and the simulator.
"""

from tidal.pets.policies.base import PetsBatch, PetsQuery
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
from tidal.pets.policies.pool import BatchPlan, Pool, batch_seconds, sum_of_waiting, total_seconds

__all__ = [
    "BatchPlan",
    "Batching",
    "BySpread",
    "Fixed",
    "PetsBatch",
    "PetsQuery",
    "PetsScheduler",
    "Pool",
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
