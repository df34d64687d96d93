"""Which waiting queries run next, together, and with how many tokens. Pure: no clock, no threads, no engines."""

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
