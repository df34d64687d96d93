"""Traffic and load of models, summed over the nodes that queries arrive at. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from tidal.controller.counts import ModelCounts
from tidal.controller.reports import ModelProfile, ModelReport, NodeReport, since

_LOAD_READINGS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a model on a node.

    Attributes:
        queries_per_s: Queries that arrive at the node, per second.
        busy: Mean share of the time that its instances compute, from 0 to 1.
    """

    queries_per_s: float
    busy: float


@dataclass(slots=True)
class ObservedModel:
    """What was observed of a model since its last decision.

    Attributes:
        profile: Published properties of the model.
        at: Time of the last reading, in seconds on the caller's clock.
        seconds: Time of the period so far in which a server answered, in seconds.
        readings: Last counts of each node with the identity of its server.
        traffic: Traffic of each node.
        before: Traffic of each node in the period before.
    """

    profile: ModelProfile
    at: float
    seconds: float = 0.0
    readings: dict[str, tuple[tuple[int, int], ModelCounts]] = field(default_factory=dict)
    traffic: dict[str, ModelCounts] = field(default_factory=dict)
    before: dict[str, ModelCounts] = field(default_factory=dict)

    def observe(self, node: NodeReport, model: ModelReport) -> ModelCounts | None:
        """Add and return what a node has done since its last reading; None for its first one, a mere reference."""
        known = self.readings.get(node.node)
        self.readings[node.node] = node.identity, model.counts
        if known is None or known[0] != node.identity:
            return None
        done = since(known[1], model.counts)
        self.traffic[node.node] = self.traffic[node.node] + done if node.node in self.traffic else done
        return done

    def passed(self, now: float, *, answered: bool) -> None:
        """End the reading of all nodes.

        Args:
            now: Current time on the caller's clock, in seconds.
            answered: Whether any node was observed since the last reading: an outage is no observation time, so that
                little traffic before it decides nothing.
        """
        self.seconds += now - self.at if answered else 0.0
        self.at = now

    def restart(self) -> None:
        """Begin the next period."""
        self.seconds, self.before, self.traffic = 0.0, self.traffic, {}

    def total(self) -> ModelCounts:
        """Return the traffic of all entrances in the period."""
        return replace(sum(self.traffic.values(), start=self._none), seconds=self.seconds)

    def busy_s(self, node: str) -> tuple[float, ...]:
        """Return the engine time of a node by runtime, of this period and the one before: this one may be new."""
        return (self.before.get(node, self._none) + self.traffic.get(node, self._none)).busy_s

    @property
    def _none(self) -> ModelCounts:
        return ModelCounts.none(len(self.profile.lengths))


class RecentLoad:
    """Load of each model on each node over the last readings: metrics are some seconds late, so one is too short."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str], deque[tuple[float, tuple[int, int], ModelCounts]]] = {}

    def observe(self, node: NodeReport, now: float) -> None:
        """Add a report of a node.

        Args:
            node: The report.
            now: Current time on the caller's clock, in seconds.
        """
        for its in node.models:
            readings = self._readings.setdefault((node.node, its.model), deque(maxlen=_LOAD_READINGS))
            if readings and readings[-1][1] != node.identity:
                readings.clear()
            readings.append((now, node.identity, its.counts))

    def of(self, node: str, model: ModelReport) -> Load | None:
        """Return the load of a model on a node; None before the second reading."""
        readings = self._readings.get((node, model.model), deque())
        if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
            return None
        seconds, done = readings[-1][0] - readings[0][0], since(readings[0][2], readings[-1][2])
        busy = sum(done.busy_s) / seconds / max(1, sum(model.instances))
        return Load(sum(done.queries) / seconds, min(1.0, busy))
