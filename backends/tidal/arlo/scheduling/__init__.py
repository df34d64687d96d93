"""How many instances each runtime gets, and how to get there (Arlo §3.3, §4). Pure: no clock, no I/O."""

from tidal.arlo.scheduling.demand import demand_by_runtime
from tidal.arlo.scheduling.latency import LatencyCurve, MeasuredLatency, PoissonLatency
from tidal.arlo.scheduling.problem import AllocationProblem, RuntimeProfile, capacity_within
from tidal.arlo.scheduling.reallocation import LEAST_GAIN, Reallocation, at_once, reallocate, stages
from tidal.arlo.scheduling.replacement import Replacement, in_batches, replacement_plan
from tidal.arlo.scheduling.scaling import Autoscaler, InstanceLoad, Scaling, least_busy
from tidal.arlo.scheduling.solution import Solution, fewest_gpus, solve, start_allocation

__all__ = [
    "LEAST_GAIN",
    "AllocationProblem",
    "Autoscaler",
    "InstanceLoad",
    "LatencyCurve",
    "MeasuredLatency",
    "PoissonLatency",
    "Reallocation",
    "Replacement",
    "RuntimeProfile",
    "Scaling",
    "Solution",
    "at_once",
    "capacity_within",
    "demand_by_runtime",
    "fewest_gpus",
    "in_batches",
    "least_busy",
    "reallocate",
    "replacement_plan",
    "solve",
    "stages",
    "start_allocation",
]
