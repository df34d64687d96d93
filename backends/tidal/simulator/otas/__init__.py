"""OTAS and the systems it is compared with, on one simulated engine (OTAS §V).

Imports OTAS's policies, so that the objects that decide are those that serve. Imported by benchmarks.
"""

from tidal.simulator.otas.result import OtasResult
from tidal.simulator.otas.run import measured_seconds, simulate
from tidal.simulator.otas.switching import ModelSwitching, ModelVariant, SizeByLoad
from tidal.simulator.otas.workload import QueryTrace, QueryType, fluctuating, squeezed

__all__ = [
    "ModelSwitching",
    "ModelVariant",
    "OtasResult",
    "QueryTrace",
    "QueryType",
    "SizeByLoad",
    "fluctuating",
    "measured_seconds",
    "simulate",
    "squeezed",
]
