"""The serving policies under a virtual clock, on as many GPUs as one likes (Arlo §4, §5.2). Knows no engine."""

from tidal.simulator.result import Moment, Result
from tidal.simulator.run import OVERHEAD_S, Failures, simulate
from tidal.simulator.service_times import ServiceTimes, from_profile, read_table
from tidal.simulator.systems import History, Name, Scale, System, make_system
from tidal.simulator.workload import Bursts, Workload, scaled_lengths

__all__ = [
    "OVERHEAD_S",
    "Bursts",
    "Failures",
    "History",
    "Moment",
    "Name",
    "Result",
    "Scale",
    "ServiceTimes",
    "System",
    "Workload",
    "from_profile",
    "make_system",
    "read_table",
    "scaled_lengths",
    "simulate",
]
