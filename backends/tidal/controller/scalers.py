"""Scaling of models and nodes: what it keeps between two passes of the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidal.controller.counts import ModelCounts
from tidal.controller.observed import RecentLoad
from tidal.controller.reports import NodeReport, reports_of
from tidal.controller.scaling import (
    CALM_PERIODS,
    ModelScaler,
    NodePlan,
    NodeScaler,
    NodeUse,
    ScalingSettings,
    ScalingState,
)
from tidal.controller.summary import drain_state

#: Requests the nodes with these addresses, and a number of further ones.
RequestNodes = Callable[[Sequence[str], int], None]


class ClusterScaling:
    """Decides about instances and nodes by the reports of all nodes.

    Args:
        settings: Bounds of scaling; None: all devices of all nodes are used.
        period_s: Time between two decisions about the lengths of queries, in seconds.
        request: Requests nodes.
    """

    def __init__(self, settings: ScalingSettings | None, period_s: float, request: RequestNodes) -> None:
        self._settings, self._request = settings, request
        self._scalers: dict[str, ModelScaler] = {}
        self._nodes = (
            None
            if settings is None or settings.max_nodes is None
            else NodeScaler(settings.min_nodes, settings.max_nodes, CALM_PERIODS * period_s)
        )
        self._plan: NodePlan | None = None
        self._requested: tuple[tuple[str, ...], int] | None = None

    @property
    def state(self) -> ScalingState | None:
        """What it has decided; None without settings."""
        if self._settings is None:
            return None
        return ScalingState({model: each.wanted for model, each in dict(self._scalers).items()}, self._plan)

    def observe(self, model: str, counts: ModelCounts) -> None:
        """Add what a node has done since its last reading."""
        if model in self._scalers:
            self._scalers[model].observe(counts)

    def instances(
        self, model: str, reports: Mapping[str, NodeReport], last: Mapping[str, Any], now: float
    ) -> tuple[int | None, str]:
        """Return the number of instances that a model is to use now (G), and the rule that changed it last.

        The number is None where all devices are used.

        Args:
            model: Name of the model.
            reports: Reports of the nodes by name.
            last: Last plan of the model; empty if there is none.
            now: Current time on the caller's clock, in seconds.
        """
        if self._settings is None:
            return None, ""
        its = {name: each for name, each in reports_of(model, reports).items() if not reports[name].draining}
        devices = sum(each.devices for each in its.values())
        present = sum(sum(each.instances) for each in its.values())
        if model not in self._scalers:
            slo_s = next(iter(reports_of(model, reports).values())).profile.slo_s
            self._scalers[model] = ModelScaler(slo_s, self._settings, last.get("instances", min(devices, present)))
        scaler = self._scalers[model]
        if self._settings.only_node:
            scaler.wanted, scaler.reason = present, ""
        more_nodes = self._nodes is not None and self._nodes.may_grow(_uses(reports, None, ()))
        entrances = sum(reports[name].entrance for name in its)
        return scaler.decide(now, devices, entrances, more_nodes=more_nodes), scaler.reason

    def changed(self, model: str, now: float) -> None:
        """Restart observation of a model after a change of its instances."""
        if model in self._scalers:
            self._scalers[model].changed(now)

    def forget(self, model: str) -> None:
        """Begin again with a model that has another SLO."""
        self._scalers.pop(model, None)

    def nodes(
        self, reports: dict[str, NodeReport], load: RecentLoad, plans: dict[str, dict[str, Any]], now: float
    ) -> NodePlan:
        """Decide about the nodes, and request them.

        Args:
            reports: Reports of the nodes by name.
            load: Recent load of the nodes.
            plans: Last plan of each model.
            now: Current time on the caller's clock, in seconds.

        Raises:
            Unavailable: What starts machines does not accept the request.
        """
        if self._nodes is None:
            return NodePlan(0)
        drained = [name for name in reports if drain_state(name, reports, plans) == "drained"]
        uses = _uses(reports, load, drained)
        wanted = {model: each.wanted for model, each in self._scalers.items()}
        plan = self._plan = self._nodes.decide(now, uses, wanted)
        kept = [name for name, each in sorted(reports.items()) if not (each.released and name in drained)]
        active = sum(not each.draining and bool(each.models) for each in reports.values())
        request = (
            tuple(reports[name].grpc.rpartition(":")[0] for name in kept if reports[name].grpc),
            max(0, plan.wanted - active - (plan.use is not None)),
        )
        if request != self._requested:
            self._request(*request)
            self._requested = request
        return plan


def _uses(reports: Mapping[str, NodeReport], load: RecentLoad | None, drained: Sequence[str]) -> dict[str, NodeUse]:
    uses = {}
    for name, node in reports.items():
        busy = 0.0
        for its in node.models:
            found = None if load is None else load.of(name, its)
            busy += 0.0 if found is None else found.busy * sum(its.instances)
        uses[name] = NodeUse(
            {its.model: its.devices for its in node.models},
            {its.model: sum(its.instances) for its in node.models},
            busy,
            node.draining,
            node.draining and name not in drained,
            node.released,
            node.entrance,
        )
    return uses
