"""Decides what each iteration does: pure code, without clock, threads or torch; may import `tidal.profiles` only."""

from tidal.flover.policies.budget import MemoryBudget
from tidal.flover.policies.costs import PassCosts, ProfiledCosts
from tidal.flover.policies.drafting import DraftingPolicy
from tidal.flover.policies.prefixes import Prefixes
from tidal.flover.policies.scheduler import FloverScheduler
from tidal.flover.policies.speculation import Draft, DraftAcceptance, SpeculationPolicy
from tidal.flover.policies.types import Admission, Clearing, PrefillChunk, Schedulable

__all__ = [
    "Admission",
    "Clearing",
    "Draft",
    "DraftAcceptance",
    "DraftingPolicy",
    "FloverScheduler",
    "MemoryBudget",
    "PassCosts",
    "PrefillChunk",
    "Prefixes",
    "ProfiledCosts",
    "Schedulable",
    "SpeculationPolicy",
]
