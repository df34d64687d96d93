"""Arlo and the systems it is compared with, on clusters of simulated GPUs (Arlo §4, §5.2).

Imports Arlo's policies and solvers, so that the objects that decide are those that serve. Imported by `tidal simulate`
and by benchmarks.
"""

from tidal.simulator.arlo.result import ClusterResult, ClusterSample
from tidal.simulator.arlo.run import OVERHEAD_S, GpuFailures, simulate
from tidal.simulator.arlo.service_times import ServiceTimes, from_profile, read_table
from tidal.simulator.arlo.systems import ScalingBounds, SimulatedSystem, SystemName, make_system
from tidal.simulator.arlo.workload import (
    TWEETS,
    Bursts,
    LengthHistory,
    SyntheticRequests,
    length_history,
    scaled_lengths,
)

__all__ = [
    "OVERHEAD_S",
    "TWEETS",
    "Bursts",
    "ClusterResult",
    "ClusterSample",
    "GpuFailures",
    "LengthHistory",
    "ScalingBounds",
    "ServiceTimes",
    "SimulatedSystem",
    "SyntheticRequests",
    "SystemName",
    "from_profile",
    "length_history",
    "make_system",
    "read_table",
    "scaled_lengths",
    "simulate",
]
