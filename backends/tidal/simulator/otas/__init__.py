"""OTAS's policies, and what they are compared with, on one engine under a virtual clock (OTAS §V). Knows no engine."""

from tidal.simulator.otas.result import OtasResult
from tidal.simulator.otas.run import measured_seconds, simulate
from tidal.simulator.otas.switching import ModelSwitching, SizeByLoad, Variant
from tidal.simulator.otas.workload import QueryType, Trace, fluctuating, squeezed

__all__ = [
    "ModelSwitching",
    "OtasResult",
    "QueryType",
    "SizeByLoad",
    "Trace",
    "Variant",
    "fluctuating",
    "measured_seconds",
    "simulate",
    "squeezed",
]
