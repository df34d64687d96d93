"""What each iteration does: who gets a slot, which prompts are read on, who is refused. Told the time, holding none."""

from tidal.flover.policies.costs import Costs, ProfiledCosts
from tidal.flover.policies.scheduler import FloverScheduler
from tidal.flover.policies.types import Chunk, Generation, Iteration

__all__ = ["Chunk", "Costs", "FloverScheduler", "Generation", "Iteration", "ProfiledCosts"]
