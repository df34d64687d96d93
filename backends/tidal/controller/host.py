"""Control of one server: a cluster of one node, whose agent is in the process of the controller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tidal.controller.agents import LocalAgents
from tidal.controller.controller import PAUSE_AFTER_FAILURE_S, POLL_S, ClusterController
from tidal.controller.decisions import PlanSettings
from tidal.controller.event_log import EventLog
from tidal.controller.host_journal import HostJournal, Outcome
from tidal.controller.host_node import NODE, DryNode, HostNode
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.server_finder import ControlledServer
from tidal.errors import Internal

_WAIT_S = 0.1


class HostController:
    """Controls the partitioned models of one server.

    Args:
        find: Returns the server; called before every reading, raises Unavailable while the server is down.
        settings: Settings that apply to every model, with `only_node`.
        models: Names of the models; empty: all partitioned models of the server.
        events: Log that every event is written to.
        metrics: Its metrics.
        dry_run: Whether to log decisions without applying them.
        poll_s: Time between two readings of the server, in seconds.
        pause_s: Time before the next decision about a model whose change failed, in seconds.
    """

    def __init__(
        self,
        find: Callable[[], ControlledServer],
        settings: PlanSettings,
        models: Sequence[str],
        events: EventLog,
        metrics: ClusterMetrics,
        *,
        dry_run: bool = False,
        poll_s: float = POLL_S,
        pause_s: float = PAUSE_AFTER_FAILURE_S,
    ) -> None:
        self._find, self._settings, self._models = find, settings, tuple(dict.fromkeys(models))
        self._events, self._metrics, self._dry_run = events, metrics, dry_run
        self._poll_s, self._pause_s = poll_s, pause_s

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Control the models until `stop` is set.

        Args:
            stop: Event that ends control, after the step of a change in progress.
            once: Whether to return as soon as there was one decision for every model.

        Raises:
            TidalError: A named model is not partitioned; with `once`: the server is down or a change failed.
        """
        outcome = Outcome()
        node = (DryNode if self._dry_run else HostNode)(self._find, self._models, self._events, outcome)
        journal = HostJournal(self._events, self._models, outcome, dry_run=self._dry_run, once=once)
        controller = ClusterController(
            LocalAgents({NODE: node}),
            self._settings,
            poll_s=self._poll_s,
            pause_s=self._pause_s,
            journal=journal,
            metrics=self._metrics,
        )
        try:
            while not stop.is_set() and not outcome.over.wait(_WAIT_S):
                if controller.ended(0.0):
                    raise Internal("the controller failed: see its output above")
        finally:
            controller.close()
            while not controller.ended(_WAIT_S):
                pass
            node.close()
        if outcome.error is not None:
            raise outcome.error
