"""Which waiting queries run next, where, and together. Pure: no clock, no threads, no engines."""

from tidal.arlo.policies.base import Batch, Query
from tidal.arlo.policies.polymorphic import PolymorphicPolicy

__all__ = ["Batch", "PolymorphicPolicy", "Query"]
