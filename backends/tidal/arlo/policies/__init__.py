"""Placement policies: which queries run next, on which lane, in which batch. Pure: no clock, threads or engines.

Imported by the `arlo` service, the simulator and benchmarks.
"""

from tidal.arlo.policies.base import ArloBatch, ArloQuery, PlacementPolicy
from tidal.arlo.policies.partitioned import SERVED_DEPTH, PartitionedPolicy
from tidal.arlo.policies.polymorphic import PolymorphicPolicy
from tidal.arlo.policies.rules import CompletionRule, CongestionRule, DispatchRule

__all__ = [
    "SERVED_DEPTH", "ArloBatch", "ArloQuery", "CompletionRule", "CongestionRule", "DispatchRule", "PartitionedPolicy",
    "PlacementPolicy", "PolymorphicPolicy",
]  # fmt: skip
