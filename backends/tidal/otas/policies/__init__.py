"""Policies that choose the next batch of waiting queries and its γ. Pure: no clock, no threads, no engines.

The service and the simulator import it; it imports only plain data.
"""

from tidal.otas.policies.fixed import FixedPolicy
from tidal.otas.policies.paper import PaperPolicy
from tidal.otas.policies.pareto import ParetoPolicy
from tidal.otas.policies.types import Batch, CostProfile, Decision, OtasPolicy, Query

__all__ = [
    "Batch",
    "CostProfile",
    "Decision",
    "FixedPolicy",
    "OtasPolicy",
    "PaperPolicy",
    "ParetoPolicy",
    "Query",
]
