"""Decides what each iteration does: pure code, without clock, threads or torch; may import `tidal.profiles` only."""

from tidal.flover.policies.costs import PassCosts, ProfiledCosts
from tidal.flover.policies.scheduler import FloverScheduler
from tidal.flover.policies.types import PrefillChunk, Schedulable, Schedule

__all__ = ["FloverScheduler", "PassCosts", "PrefillChunk", "ProfiledCosts", "Schedulable", "Schedule"]
