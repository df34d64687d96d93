"""Which waiting queries run next, where, and together. Pure: no clock, no threads, no engines."""

from tidal.arlo.policies.base import ArloBatch, ArloQuery, PlacementPolicy
from tidal.arlo.policies.partitioned import PartitionedPolicy
from tidal.arlo.policies.polymorphic import PolymorphicPolicy

__all__ = ["ArloBatch", "ArloQuery", "PartitionedPolicy", "PlacementPolicy", "PolymorphicPolicy"]
