"""Which waiting queries run next, where, and together. Pure: no clock, no threads, no engines."""

from tidal.arlo.policies.base import Batch, PlacementPolicy, Query
from tidal.arlo.policies.partitioned import PartitionedPolicy
from tidal.arlo.policies.polymorphic import PolymorphicPolicy

__all__ = ["Batch", "PartitionedPolicy", "PlacementPolicy", "PolymorphicPolicy", "Query"]
