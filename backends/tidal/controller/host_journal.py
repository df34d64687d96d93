"""What `tidal controller` reports: events of its server and its models, and the end of `--once`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from tidal.controller.decisions import Decision
from tidal.controller.event_log import EventLog
from tidal.controller.journal import Journal
from tidal.controller.reports import NodeReport
from tidal.errors import NotFound, TidalError, Unavailable


class Outcome:
    """How control ends, unless a signal ends it.

    Attributes:
        over: Event that is set when it ends.
        error: Why it ends; None if it has done what it had to do.
    """

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: TidalError | None = None

    def end(self, error: TidalError | None = None) -> None:
        """End control; the first reason stays."""
        if not self.over.is_set():
            self.error = error
            self.over.set()


class HostJournal(Journal):
    """Writes events of the only node.

    Args:
        events: Log that every event is written to.
        models: Names of the models; empty: all partitioned models of the server.
        outcome: End of control.
        dry_run: Whether decisions are not applied.
        once: Whether control ends after a decision for every model, or an error.
    """

    def __init__(self, events: EventLog, models: Sequence[str], outcome: Outcome, *, dry_run: bool, once: bool) -> None:
        super().__init__(events)
        self._models, self._outcome = models, outcome
        self._dry_run, self._once = dry_run, once
        self._server = ""  # state that was written last
        self._served: frozenset[str] = frozenset()
        self._decided: set[str] = set()

    def read(self, nodes: Mapping[str, NodeReport]) -> None:
        """Record the state of the server, once while it stays the same."""
        self._served = frozenset()
        if self._outcome.over.is_set():
            return
        for report in nodes.values():
            if report.state != "serves":
                if self._once and report.state == "away":
                    self._outcome.end(Unavailable(report.reason))
                self._write("away", f"waiting: {report.reason}")
            elif not report.models:
                missing = ", ".join(self._models) or "any partitioned model"
                lacking = f"the server at {report.http} does not serve {missing}"
                if self._once:
                    self._outcome.end(NotFound(lacking))
                self._write("idle", f"waiting: {lacking}")
            else:
                self._write(f"connected {report.identity}", f"controlling models of the server at {report.http}")
                self._served = frozenset(its.model for its in report.models)

    def decided(self, model: str, decision: Decision) -> None:
        """Record a decision."""
        self.events.decided(model, decision, dry_run=self._dry_run)
        if decision.trigger == "period":
            self._decided.add(model)

    def changed(self, model: str, decision: Decision, seconds: float) -> None:
        """Record a change that was completed after some seconds."""
        if not self._dry_run:
            super().changed(model, decision, seconds)

    def passed(self, waiting: Mapping[str, str]) -> None:
        """Record reasons to wait of the models that are served; with `once`, end after an error or all decisions."""
        waiting = {model: reason for model, reason in waiting.items() if not model or model in self._served}
        if self._once and waiting:
            self._outcome.end(Unavailable(next(iter(waiting.values()))))
        if self._outcome.over.is_set():
            return
        super().passed(waiting)
        if self._once and self._served and self._served <= self._decided:
            self._outcome.end()

    def _write(self, state: str, sentence: str) -> None:
        if state != self._server and not self._outcome.over.is_set():
            self._server = state
            self.events.record(state.partition(" ")[0], sentence)
