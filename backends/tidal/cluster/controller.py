"""The controller of a cluster: a named Ray actor that decides for all nodes. It can read again all that it keeps.

It reads the agents every second, writes the fronts' tables of other nodes, and changes instances by `plan_cluster`, on
all devices or as many as `ClusterScaling` decides. While an agent that Ray knows does not answer, it decides nothing.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tidal.arlo.scheduling import ClusterPlan, NodeCounts
from tidal.cluster.affinity import EntranceAffinity
from tidal.cluster.autoscaling import ClusterScaling, RequestNodes
from tidal.cluster.handles import Agents, check_answers
from tidal.cluster.metrics import ClusterMetrics
from tidal.cluster.metrics_page import MetricsPage, PageAddress
from tidal.cluster.observed import ObservedModel, PlanSettings, RecentLoad, decide, described, plan_trigger
from tidal.cluster.reports import NodeReport, entrances, node_tables, reports_of, why_blocked, without_server
from tidal.cluster.summary import ClusterState, drain_state, newest_plans, summary
from tidal.errors import InvalidArgument, NotFound, TidalError

POLL_S = 1.0
_REPORT_S = 5.0
_ALLOCATE_S = 180.0
# Fronts read their tables every 0.25 s.
_TABLE_READ_S = 0.5
_PAUSE_AFTER_FAILURE_S = 10.0


class ClusterController:
    """Controls the partitioned models of all nodes from a thread of its own.

    Args:
        agents: Calls of the agents.
        settings: Settings of its decisions.
        metrics: Address of its metrics; None: not served.
        clock: Current time in seconds.
        poll_s: Time between two readings of the agents, in seconds.
        request_nodes: Requests nodes from what can start machines.
    """

    def __init__(
        self,
        agents: Agents,
        settings: PlanSettings,
        metrics: PageAddress | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        request_nodes: RequestNodes = lambda hosts, more: None,
    ) -> None:
        self._agents, self._settings, self._clock, self._poll_s = agents, settings, clock, poll_s
        self._nodes: dict[str, NodeReport] = {}
        self._silent: dict[str, str] = {}
        self._reported_at: dict[str, float] = {}
        self._tables: dict[str, Any] = {}  # that nodes are known to have
        self._outdated: frozenset[str] = frozenset()
        self._load, self._affinity = RecentLoad(), EntranceAffinity()
        self._observed: dict[str, ObservedModel] = {}
        self._plans: dict[str, dict[str, Any]] | None = None
        self._waiting: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._scaling = ClusterScaling(settings.scaling, settings.period_s, request_nodes)
        self._wake, self._closed = threading.Event(), threading.Event()
        self._passed, self._passes = threading.Condition(), 0
        self._metrics = ClusterMetrics(self._state)
        self._page = MetricsPage(self._metrics.registry, metrics)
        threading.Thread(target=self._run, name="controller", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """Return the nodes, their instances and load, the last plan of each model, and what is waited for.

        It returns after the first reading of the agents.
        """
        with self._passed:
            self._passed.wait_for(lambda: self._passes, _REPORT_S * 2)
        return summary(self._state(), self._load, os.getpid(), self._page.serve())

    def _state(self) -> ClusterState:
        return ClusterState(
            dict(self._nodes),
            dict(self._silent),
            dict(self._plans or {}),
            dict(self._waiting),
            dict(self._reported_at),
            self._outdated,
            self._scaling.state,
        )

    def drain(self, node: str, draining: bool) -> None:
        """Begin or end to drain a node; `status` reports when its instances have moved.

        Args:
            node: Name of the node.
            draining: Whether to begin.

        Raises:
            NotFound: There is no such node.
            InvalidArgument: It is the last node that does not drain.
            Unavailable: Its agent does not answer.
        """
        names = self._agents.names()
        if node not in names:
            raise NotFound(f"the cluster has no node '{node}'; its nodes are {', '.join(names) or 'none'}")
        left = {name for name in names if (known := self._nodes.get(name)) and not known.draining}
        if draining and not left - {node}:
            raise InvalidArgument(f"node '{node}' is the last one that does not drain: join another node first")
        self._call({node: ("set_draining", draining)})
        passes = self._passes
        self._wake.set()
        with self._passed:  # the pass in progress may have read the node before
            self._passed.wait_for(lambda: self._passes >= passes + 2, _REPORT_S * 2)

    def close(self) -> None:
        """Stop after the pass in progress."""
        self._closed.set()
        self._wake.set()

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
            with self._passed:
                self._passes += 1
                self._passed.notify_all()
            self._wake.wait(self._poll_s)
            self._wake.clear()
        self._page.close()

    def _pass(self) -> None:
        names = self._agents.names()
        self._waiting.pop("", None)
        if not self._read(names):
            return
        if self._plans is None:
            kept = self._agents.call(dict.fromkeys(self._nodes, ("plans",)), _REPORT_S)
            self._plans = newest_plans(kept.values())
        now = self._clock()
        for model in sorted({each.model for node in self._nodes.values() for each in node.models}):
            self._observe(model, now)
        self._write_tables()
        waiting: dict[str, str] = {}
        for model in self._observed:
            reason = why_blocked(model, self._nodes, self._silent)
            if reason is None and now < self._not_before.get(model, 0.0):
                reason = self._waiting.get(model, "a change failed")
            if reason is not None:
                waiting[model] = reason
                continue
            try:
                self._plan(model, now)
            except TidalError as error:
                self._not_before[model] = self._clock() + _PAUSE_AFTER_FAILURE_S
                waiting[model] = str(error)
        self._waiting = waiting
        if not waiting:
            self._scale_nodes(now)

    def _scale_nodes(self, now: float) -> None:
        """Use a drained node again, or drain one, where scaling decides it; the next pass moves the instances."""
        plan = self._scaling.nodes(self._nodes, self._load, self._plans or {}, now)
        if plan.use is not None:
            self._call({plan.use: ("set_draining", False)})
        if plan.release is not None:
            self._call({plan.release: ("set_draining", True, True)})

    def _read(self, names: list[str]) -> bool:
        """Read all agents; return whether every one has answered, now or before."""
        answers = self._agents.call(dict.fromkeys(names, ("report",)), _REPORT_S)
        for name in self._nodes.keys() - set(names):
            self._metrics.gone(drained=drain_state(name, self._nodes, self._plans or {}) == "drained")
            self._reported_at.pop(name, None)
            self._tables.pop(name, None)
        nodes, silent = {}, {}
        for name in names:
            answer = answers.get(name)
            known = self._nodes.get(name)
            if isinstance(answer, NodeReport):
                nodes[name] = answer if known is None else without_server(known, answer)
                self._load.observe(answer, self._clock())
                self._reported_at[name] = time.time()
            else:
                silent[name] = str(answer)
                if known is not None:
                    nodes[name] = known
        self._nodes, self._silent = nodes, silent
        if len(nodes) < len(names):
            missing = ", ".join(sorted(set(names) - nodes.keys()))
            self._waiting[""] = f"waiting for a first report of {missing}"
            return False
        return True

    def _observe(self, model: str, now: float) -> None:
        reports = reports_of(model, self._nodes)
        profile = next(iter(reports.values())).profile
        known = self._observed.get(model)
        if known is None or known.profile != profile:
            known = self._observed[model] = ObservedModel(profile, now)
            self._metrics.add_model(model)
            self._scaling.forget(model)
        for name, its in reports.items():
            if name not in self._silent and its.profile == profile:
                done = known.observe(self._nodes[name], its)
                self._metrics.arrived(model, profile.lengths, done.queries)
                self._scaling.observe(model, done)

    def _write_tables(self, limits: dict[str, dict[str, tuple[int, ...]]] | None = None) -> None:
        """Write tables and lists of servers; a node that cannot be written now gets them in the next pass."""
        tables = node_tables(self._nodes, limits, self._affinity.entrances(self._nodes, self._load))
        servers = entrances(self._nodes)
        answers = self._agents.call(
            {name: ("write_tables", its, servers) for name, its in tables.items() if self._answers(name)}, _REPORT_S
        )
        self._tables |= {name: tables[name] for name, answer in answers.items() if not isinstance(answer, TidalError)}
        self._outdated = frozenset(name for name, its in tables.items() if self._tables.get(name) != its)

    def _answers(self, name: str) -> bool:
        return name not in self._silent and self._nodes[name].state == "serves"

    def _plan(self, model: str, now: float) -> None:
        """Finish interrupted changes, then decide and carry it out if there is something to decide."""
        assert self._plans is not None
        reports = reports_of(model, self._nodes)
        unfinished = {name: its for name, its in reports.items() if its.unfinished}
        if unfinished:
            with self._metrics.change(model, 0):
                self._allocate(model, {name: its.by_length(its.instances) for name, its in unfinished.items()})
            return
        observed, last = self._observed[model], self._plans.get(model, {})
        nodes = {name: its.devices for name, its in reports.items()}
        draining = [name for name in sorted(reports) if self._nodes[name].draining]
        instances, reason = self._scaling.instances(model, self._nodes, last, now)
        over = now - observed.since >= self._settings.period_s
        trigger = plan_trigger(last, nodes, draining, period_over=over, instances=instances)
        if trigger is None:
            return
        rule = reason if trigger == "scaling" else ""
        with self._metrics.planning(model, trigger):
            plan = decide(observed, self._nodes, model, self._settings, now, instances, rule)
        record = {"at": datetime.now().astimezone().isoformat(timespec="milliseconds"), "state": "changing"}
        record |= {"trigger": trigger, **described(plan, observed, now)}
        if not rule:  # scaling does not use the lengths of the queries: the period goes on
            observed.restart(now)
        try:
            self._keep(model, record)
            if plan.moves:
                with self._metrics.change(model, plan.moves):
                    self._apply(model, plan)
                self._scaling.changed(model, self._clock())
            record["state"] = "done"
        except TidalError as error:
            record["state"] = f"failed: {error}"
            raise
        finally:
            self._keep(model, record)

    def _keep(self, model: str, record: dict[str, Any]) -> None:
        assert self._plans is not None
        self._plans[model] = record
        self._agents.call(dict.fromkeys(self._nodes, ("remember_plan", model, record)), _REPORT_S)

    def _apply(self, model: str, plan: ClusterPlan) -> None:
        counts = plan.before
        for stage in plan.stages():
            self._limit(model, plan, counts, stage)
            changing = {}
            for node, before, after in zip(plan.nodes, counts, stage, strict=True):
                if before != after and (its := self._nodes[node.name].of_model(model)) is not None:
                    changing[node.name] = its.by_length(after)
            self._allocate(model, changing)
            counts = stage
            self._read(self._agents.names())
            self._write_tables()

    def _limit(self, model: str, plan: ClusterPlan, counts: NodeCounts, stage: NodeCounts) -> None:
        """Let other nodes stop using instances that are about to end."""
        pairs = list(zip(plan.nodes, counts, stage, strict=True))
        if all(b >= a for _, before, after in pairs for a, b in zip(before, after, strict=True)):
            return
        least = {node.name: tuple(map(min, before, after)) for node, before, after in pairs}
        self._write_tables({model: least})
        time.sleep(_TABLE_READ_S)

    def _allocate(self, model: str, changes: dict[str, dict[int, int]]) -> None:
        self._call({name: ("allocate", model, counts) for name, counts in changes.items()}, _ALLOCATE_S)

    def _call(self, requests: dict[str, tuple[Any, ...]], timeout_s: float = _REPORT_S) -> None:
        """Call agents, and raise the errors of those that failed."""
        check_answers(self._agents.call(requests, timeout_s))
