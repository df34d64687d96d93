"""Result of a run over simulated nodes."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.simulator.arlo.latencies import LatencyFigures
from tidal.simulator.requests import Floats


@dataclass(frozen=True, slots=True)
class NodesSample:
    """State of the cluster at the end of a second.

    Attributes:
        at: Time in seconds.
        nodes: Number of nodes that serve.
        instances: Instances of these nodes by runtime, without those that are loading.
        waiting: Queries that have arrived and are not answered.
    """

    at: float
    nodes: int
    instances: tuple[int, ...]
    waiting: int


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A decision of the controller: its time in seconds, its reason, and how many instances end and start."""

    at: float
    reason: str
    moves: int


@dataclass(frozen=True)
class NodesResult(LatencyFigures):
    """Result of a run; every query was answered once.

    Attributes:
        arrivals_s: Arrival times in seconds, in the order of the answers, float64 [queries].
        latencies_s: Latencies in seconds with hops and overhead, in the same order, float64 [queries].
        seconds: Duration of the arrivals in seconds.
        remote: Share of the executions that were on another node than the query's entrance.
        again: Queries that were dispatched again because a node was lost, counted each time.
        plans: Decisions of the controller after the start.
        samples: State at the end of each second, until the last answer.
    """

    arrivals_s: Floats
    latencies_s: Floats
    seconds: float
    remote: float
    again: int
    plans: tuple[PlanRecord, ...]
    samples: tuple[NodesSample, ...]
