"""Arlo on nodes with several devices each: plans of `plan_cluster`, several entrances, nodes that are lost and return.

The dispatcher of an entrance and the plans are those that serve (`PartitionedPolicy`, `plan_cluster`); queries, nodes
and their failures are simulated. Imported by benchmarks.
"""

from tidal.simulator.arlo.nodes.result import NodesResult, NodesSample, PlanRecord
from tidal.simulator.arlo.nodes.run import simulate_nodes
from tidal.simulator.arlo.nodes.settings import NodeOutage, SimulatedNodes, random_outages

__all__ = [
    "NodeOutage",
    "NodesResult",
    "NodesSample",
    "PlanRecord",
    "SimulatedNodes",
    "random_outages",
    "simulate_nodes",
]
