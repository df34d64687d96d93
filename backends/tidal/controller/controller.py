"""The controller of partitioned models: it decides for all nodes, of which `tidal controller` has one.

It reads the agents every second, writes the fronts' tables of other nodes, and changes instances by `plan_cluster`, on
all devices or as many as `ClusterScaling` decides. While an agent that is known does not answer, it decides nothing.
It can read again all that it keeps.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tidal.controller.agents import Agents, check_answers
from tidal.controller.changes import Changes
from tidal.controller.decisions import (
    Decision,
    PlanSettings,
    as_present,
    check_may_drain,
    decide,
    described,
    plan_trigger,
    usable_devices,
)
from tidal.controller.event_log import EventLog
from tidal.controller.journal import Journal
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.metrics_page import MetricsPage, PageAddress
from tidal.controller.nodes import REPORT_S, KnownNodes
from tidal.controller.observed import ObservedModel
from tidal.controller.reports import reports_of, why_blocked
from tidal.controller.scalers import ClusterScaling, RequestNodes
from tidal.controller.set_instances import SetInstances, requested
from tidal.controller.summary import ClusterState, drain_state, newest_plans, summary
from tidal.errors import NotFound, TidalError

POLL_S = 1.0
PAUSE_AFTER_FAILURE_S = 10.0


class ClusterController:
    """Controls the partitioned models of all nodes from a thread of its own.

    Args:
        agents: Calls of the agents.
        settings: Settings of its decisions.
        page: Address of its metrics; None: not served.
        clock: Current time in seconds.
        poll_s: Time between two readings of the agents, in seconds.
        pause_s: Time before the next decision about a model whose change failed, in seconds.
        request_nodes: Requests nodes from what can start machines.
        journal: Receives what it decides and does; None: it writes lines on standard output.
        metrics: Its metrics; None: new ones.
    """

    def __init__(
        self,
        agents: Agents,
        settings: PlanSettings,
        page: PageAddress | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        pause_s: float = PAUSE_AFTER_FAILURE_S,
        request_nodes: RequestNodes = lambda hosts, more: None,
        journal: Journal | None = None,
        metrics: ClusterMetrics | None = None,
    ) -> None:
        self._agents, self._settings, self._clock = agents, settings, clock
        self._poll_s, self._pause_s = poll_s, pause_s
        self._journal = Journal(EventLog(print)) if journal is None else journal
        self._nodes = KnownNodes(agents, clock, self._gone)
        self._observed: dict[str, ObservedModel] = {}
        self._plans: dict[str, dict[str, Any]] | None = None
        self._set = SetInstances()
        self._waiting: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._scaling = ClusterScaling(settings.scaling, settings.period_s, request_nodes)
        self._wake, self._closed = threading.Event(), threading.Event()
        self._changes = Changes(agents, self._nodes, self._journal, self._closed)
        self._passed, self._passes = threading.Condition(), 0
        self._metrics = ClusterMetrics() if metrics is None else metrics
        self._metrics.read_state(self._state)
        self._page = MetricsPage(self._metrics.registry, page)
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Return nodes, instances, load, the last plan of each model, and what is waited for, after a first reading."""
        with self._passed:
            self._passed.wait_for(lambda: self._passes, REPORT_S * 2)
        return summary(self._state(), self._nodes.load, os.getpid(), self._page.serve())

    def _state(self) -> ClusterState:
        nodes, plans, waiting = self._nodes, dict(self._plans or {}), dict(self._waiting)
        known = dict(nodes.reports), dict(nodes.silent), plans, waiting, dict(nodes.reported_at)
        return ClusterState(*known, nodes.outdated, self._scaling.state)

    def drain(self, node: str, draining: bool) -> None:
        """Begin or end to drain a node; `status` reports when its instances have moved.

        Args:
            node: Name of the node.
            draining: Whether to begin.

        Raises:
            NotFound: There is no such node.
            InvalidArgument: It is the last node, or the last entrance, that does not drain.
            Unavailable: Its agent does not answer.
        """
        names = self._agents.names()
        if node not in names:
            raise NotFound(f"the cluster has no node '{node}'; its nodes are {', '.join(names) or 'none'}")
        if draining:
            check_may_drain(node, self._nodes.reports)
        self._call({node: ("set_draining", draining)})
        passes = self._passes
        self._wake.set()
        with self._passed:  # the pass in progress may have read the node before
            self._passed.wait_for(lambda: self._passes >= passes + 2, REPORT_S * 2)

    def allocate(self, model: str, instances: Mapping[int, int] | None) -> None:
        """Set the instances of a model on all nodes together; `status` reports when they have changed.

        Args:
            model: Name of the model.
            instances: Instances by max_length in tokens, 0 where a runtime is left out; None: the controller decides.

        Raises:
            TidalError: No node serves the model, it has no such runtime, or the nodes cannot hold these instances.
        """
        known, counts = requested(model, self._observed, instances)
        if counts is not None:  # what cannot be placed is refused
            decide(known, self._nodes.reports, model, self._settings, counts=counts)
        self._set.put(model, counts)
        self._wake.set()

    def close(self) -> None:
        """Stop after the step in progress."""
        self._closed.set()
        self._wake.set()

    def ended(self, seconds: float) -> bool:
        """Wait some seconds at most for the end of its thread; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._page.serve()
            try:
                self._pass()
            except TidalError as error:
                self._waiting[""] = str(error)
            except Exception as error:  # a defect must not end control of all models without a trace
                traceback.print_exc()
                self._waiting[""] = f"the controller failed, see its log: {error!r}"
            self._journal.passed(self._waiting)
            with self._passed:
                self._passes += 1
                self._passed.notify_all()
            self._wake.wait(self._poll_s)
            self._wake.clear()
        self._page.close()

    def _pass(self) -> None:
        self._waiting.pop("", None)
        if missing := self._nodes.read():
            self._waiting[""] = f"waiting for a first report of {', '.join(missing)}"
            return
        nodes = self._nodes.reports
        self._journal.read(nodes)
        if self._plans is None:
            kept = self._agents.call(dict.fromkeys(nodes, ("plans",)), REPORT_S)
            self._plans = newest_plans(kept.values())
        now = self._clock()
        for model in sorted(self._observed.keys() | {its.model for node in nodes.values() for its in node.models}):
            self._observe(model, now)
        self._nodes.write_tables()
        waiting: dict[str, str] = {}
        for model in self._observed:
            if self._closed.is_set():
                return
            reason = why_blocked(model, self._nodes.reports, self._nodes.silent)
            if reason is None and now < self._not_before.get(model, 0.0):
                reason = self._waiting.get(model, "a change failed")
            if reason is not None:
                waiting[model] = reason
                continue
            try:
                self._plan(model, now)
            except TidalError as error:
                self._not_before[model] = self._clock() + self._pause_s
                waiting[model] = str(error)
        self._waiting = waiting
        if not waiting:
            self._scale_nodes(now)

    def _scale_nodes(self, now: float) -> None:
        """Use a drained node again, or drain one, where scaling decides it; the next pass moves the instances."""
        plan = self._scaling.nodes(self._nodes.reports, self._nodes.load, self._plans or {}, now)
        if plan.use is not None:
            self._call({plan.use: ("set_draining", False)})
        if plan.release is not None:
            self._call({plan.release: ("set_draining", True, True)})

    def _gone(self, name: str) -> None:
        self._metrics.gone(drained=drain_state(name, self._nodes.reports, self._plans or {}) == "drained")

    def _observe(self, model: str, now: float) -> None:
        reports = reports_of(model, self._nodes.reports)
        profile = next((its.profile for its in reports.values()), None) or self._observed[model].profile
        known = self._observed.get(model)
        if known is None or known.profile != profile:
            known = self._observed[model] = ObservedModel(profile, now)
            self._metrics.add_model(model)
            self._scaling.forget(model)
        answered = False
        for name, its in reports.items():
            if not self._nodes.answers(name) or its.profile != known.profile:
                continue
            done = known.observe(self._nodes.reports[name], its)
            if done is not None:
                answered = True
                self._metrics.arrived(model, known.profile.lengths, done.queries)
                self._scaling.observe(model, done)
        known.passed(now, answered=answered)

    def _plan(self, model: str, now: float) -> None:
        """Finish interrupted changes, then decide and carry it out if there is something to decide."""
        assert self._plans is not None
        nodes, observed = self._nodes.reports, self._observed[model]
        reports = reports_of(model, nodes)
        unfinished = {
            name: observed.profile.by_length(its.instances) for name, its in reports.items() if its.unfinished
        }
        if unfinished:
            with self._metrics.change(model, 0):
                self._changes.allocate(model, unfinished)
            for counts in unfinished.values():
                self._journal.completed(model, counts)
            return
        last = self._plans.get(model, {})
        if self._settings.only_node:
            last = as_present(last, reports)
        draining = [name for name in sorted(reports) if nodes[name].draining]
        instances, reason = self._scaling.instances(model, nodes, last, now)
        if (fixed := self._set.of(model, observed.profile, last)) is not None:
            instances = sum(fixed)
        devices = usable_devices(model, nodes, self._settings, instances)
        over = observed.seconds >= self._settings.period_s and fixed is None
        entrances = [name for name in sorted(reports) if nodes[name].entrance]
        trigger = plan_trigger(last, devices, draining, entrances, period_over=over, instances=instances, counts=fixed)
        if trigger is None:
            return
        rule = reason if trigger in ("first", "scaling") and fixed is None else ""
        with self._metrics.planning(model):
            plan = decide(observed, nodes, model, self._settings, instances, rule, fixed)
        decision = Decision(observed.profile, plan, trigger, observed.total(), fixed)
        self._metrics.planned(model, decision)
        if not rule:  # a rule does not use the lengths of the queries: the period goes on
            observed.restart()
        if plan.moves or trigger in ("period", "repeat"):
            self._journal.decided(model, decision)
        self._carry_out(model, decision)

    def _carry_out(self, model: str, decision: Decision) -> None:
        record = {"at": datetime.now().astimezone().isoformat(timespec="milliseconds"), "state": "changing"}
        record |= described(decision)
        try:
            self._keep(model, record)
            if decision.plan.moves:
                began = self._clock()
                with self._metrics.change(model, decision.plan.moves):
                    done = self._changes.apply(model, decision)
                self._scaling.changed(model, self._clock())
                if not done:
                    record["state"] = "stopped"
                    return
                self._journal.changed(model, decision, self._clock() - began)
            record["state"] = "done"
        except TidalError as error:
            record["state"] = f"failed: {error}"
            raise type(error)(f"{decision.action} was not completed: {error}") from None
        finally:
            self._keep(model, record)

    def _keep(self, model: str, record: dict[str, Any]) -> None:
        assert self._plans is not None
        self._plans[model] = record
        self._agents.call(dict.fromkeys(self._nodes.reports, ("remember_plan", model, record)), REPORT_S)

    def _call(self, requests: Mapping[str, tuple[Any, ...]]) -> None:
        """Call agents, and raise the errors of those that failed."""
        check_answers(self._agents.call(requests, REPORT_S))
