"""What a controller decides and does, as events: of a cluster's controller in the log of its actor."""

from __future__ import annotations

from collections.abc import Mapping

from tidal.controller.decisions import Decision
from tidal.controller.event_log import EventLog
from tidal.controller.reports import NodeReport
from tidal.server.allocate import format_counts


class Journal:
    """Writes the events of all models.

    Args:
        events: Log that every event is written to.
    """

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self._reported: dict[str, str] = {}  # by model, the reason to wait that was written last

    def read(self, nodes: Mapping[str, NodeReport]) -> None:
        """Receive the last report of each node, by name, after a reading of all."""

    def decided(self, model: str, decision: Decision) -> None:
        """Record a decision that changes instances or ends a period; others only note the nodes."""
        self.events.decided(model, decision)

    def changed(self, model: str, decision: Decision, seconds: float) -> None:
        """Record a change that was completed after some seconds."""
        now = f"now at {format_counts(decision.after)} after {seconds:.1f} s"
        self.events.record("changed", now, model, seconds=round(seconds, 3))

    def stopped(self, model: str, instances: Mapping[int, int]) -> None:
        """Record that a change ends before its last step, with the instances by max_length in tokens."""
        self.events.record("stopped", f"stopped at {format_counts(instances)}", model)

    def completed(self, model: str, instances: Mapping[int, int]) -> None:
        """Record that an interrupted change was completed, with the instances by max_length in tokens."""
        self.events.record("completed", f"completed an interrupted change: {format_counts(instances)}", model)

    def passed(self, waiting: Mapping[str, str]) -> None:
        """Record a pass over all models: each reason to wait once, until a model is decided about again.

        Args:
            waiting: Reason to wait, by model; "" for all models.
        """
        for model, reason in waiting.items():
            if self._reported.get(model) != reason:
                self.events.record("failed", f"unchanged for now: {reason}", model or None)
        self._reported = dict(waiting)
