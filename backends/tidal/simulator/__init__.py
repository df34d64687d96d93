"""The serving policies under a virtual clock, on as many GPUs as one likes (Arlo §4, §5.2). Knows no engine."""

from tidal.simulator.result import Moment, Result
from tidal.simulator.run import OVERHEAD_S, Failures, simulate
from tidal.simulator.service_times import ServiceTimes, from_profile, read_table
from tidal.simulator.systems import Name, Scale, System, make_system
from tidal.simulator.traces import TWEETS, Recorded, read_lengths, read_rates, read_requests
from tidal.simulator.workload import Bursts, History, Requests, Workload, history_of, scaled_lengths

__all__ = [
    "OVERHEAD_S",
    "TWEETS",
    "Bursts",
    "Failures",
    "History",
    "Moment",
    "Name",
    "Recorded",
    "Requests",
    "Result",
    "Scale",
    "ServiceTimes",
    "System",
    "Workload",
    "from_profile",
    "history_of",
    "make_system",
    "read_lengths",
    "read_rates",
    "read_requests",
    "read_table",
    "scaled_lengths",
    "simulate",
]
