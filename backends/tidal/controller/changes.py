"""Changes of instances on nodes: a few at a time, each in two phases, without losing a query."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from tidal.arlo.scheduling import ClusterPlan, NodeCounts
from tidal.controller.agents import Agents, check_answers
from tidal.controller.decisions import Decision
from tidal.controller.journal import Journal
from tidal.controller.nodes import KnownNodes

_ALLOCATE_S = 180.0
# Fronts read their tables every 0.25 s.
_TABLE_READ_S = 0.5


class Changes:
    """Carries out decisions.

    Args:
        agents: Calls of the agents.
        nodes: The nodes; they are read again after each step.
        journal: Receives the end of a change that is stopped.
        closed: Request to stop.
    """

    def __init__(self, agents: Agents, nodes: KnownNodes, journal: Journal, closed: threading.Event) -> None:
        self._agents, self._nodes, self._journal, self._closed = agents, nodes, journal, closed

    def apply(self, model: str, decision: Decision) -> bool:
        """Change the instances step by step; return whether no request to stop came between.

        Args:
            model: Name of the model.
            decision: The decision.

        Raises:
            Unavailable: A node failed to change.
        """
        plan, counts = decision.plan, decision.plan.before
        for stage in plan.stages():
            if self._closed.is_set():
                self._journal.stopped(model, decision.by_length(counts))
                return False
            self._limit(model, plan, counts, stage)
            changing = {
                node.name: decision.profile.by_length(after)
                for node, before, after in zip(plan.nodes, counts, stage, strict=True)
                if before != after and self._nodes.reports[node.name].of_model(model) is not None
            }
            self.allocate(model, changing)
            counts = stage
            self._nodes.read()
            self._nodes.write_tables()
        return True

    def allocate(self, model: str, instances: Mapping[str, Mapping[int, int]]) -> None:
        """Change the instances of nodes at the same time.

        Args:
            model: Name of the model.
            instances: Instances by max_length in tokens, by node.

        Raises:
            Unavailable: A node failed to change.
        """
        requests = {name: ("allocate", model, counts) for name, counts in instances.items()}
        check_answers(self._agents.call(requests, _ALLOCATE_S))

    def _limit(self, model: str, plan: ClusterPlan, counts: NodeCounts, stage: NodeCounts) -> None:
        """Let other nodes stop using instances that are about to end."""
        pairs = list(zip(plan.nodes, counts, stage, strict=True))
        if len(pairs) < 2 or all(b >= a for _, before, after in pairs for a, b in zip(before, after, strict=True)):
            return
        least = {node.name: tuple(map(min, before, after)) for node, before, after in pairs}
        self._nodes.write_tables({model: least})
        time.sleep(_TABLE_READ_S)
