"""Allocation of instances to runtimes and nodes, reallocation and scaling (Arlo §3.3, §4). Pure: no clock, no I/O.

Imported by partitioned placement, the controller, the simulator and benchmarks.
"""

from tidal.arlo.scheduling.affinity import Assignment, assign_nodes, preferred_nodes
from tidal.arlo.scheduling.cluster_plan import ClusterNode, ClusterPlan, plan_cluster
from tidal.arlo.scheduling.demand import demand_by_runtime
from tidal.arlo.scheduling.latency import LatencyCurve, MeasuredLatency, PoissonLatency
from tidal.arlo.scheduling.placement import NodeCounts, place
from tidal.arlo.scheduling.problem import AllocationProblem, RuntimeProfile, capacity_within
from tidal.arlo.scheduling.reallocation import MIN_GAIN, Reallocation, batch_size, reallocate, stages
from tidal.arlo.scheduling.replacement import Replacement, replacement_batches, replacement_plan
from tidal.arlo.scheduling.scaling import Autoscaler, InstanceLoad, Scaling, least_busy
from tidal.arlo.scheduling.solution import Solution, even_allocation, min_gpus, solve, start_allocation

__all__ = [
    "MIN_GAIN",
    "AllocationProblem",
    "Assignment",
    "Autoscaler",
    "ClusterNode",
    "ClusterPlan",
    "InstanceLoad",
    "LatencyCurve",
    "MeasuredLatency",
    "NodeCounts",
    "PoissonLatency",
    "Reallocation",
    "Replacement",
    "RuntimeProfile",
    "Scaling",
    "Solution",
    "assign_nodes",
    "batch_size",
    "capacity_within",
    "demand_by_runtime",
    "even_allocation",
    "least_busy",
    "min_gpus",
    "place",
    "plan_cluster",
    "preferred_nodes",
    "reallocate",
    "replacement_batches",
    "replacement_plan",
    "solve",
    "stages",
    "start_allocation",
]
