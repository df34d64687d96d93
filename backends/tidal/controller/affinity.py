"""Which nodes the fronts of each node use first, from where queries arrive. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidal.arlo.scheduling import Assignment, assign_nodes, preferred_nodes
from tidal.controller.observed import RecentLoad
from tidal.controller.reports import ModelEntrances, NodeReport, reports_of

# Entrances with a smaller share of the queries get no nodes beside their own.
_LEAST_SHARE = 0.02
# Nodes are assigned again once an entrance's share has changed by more than this, or so many times.
_LARGEST_CHANGE = 0.1
_LARGEST_RATIO = 2.0


@dataclass(slots=True)
class _ModelAffinity:
    """Entrances of a model, kept until the nodes, their instances or the entrances' shares change."""

    instances: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fronts: tuple[str, ...] = ()
    found: ModelEntrances = field(default_factory=ModelEntrances)

    def update(
        self, fronts: tuple[str, ...], instances: Mapping[str, Sequence[int]], queries_per_s: Mapping[str, float]
    ) -> ModelEntrances:
        shares = _shares(queries_per_s) or {name: its for name, its in self.found.shares.items() if name in fronts}
        if not _alike(shares, self.found.shares) or instances != self.instances or fronts != self.fronts:
            self.instances, self.fronts = instances, fronts
            assigned = assign_nodes(instances, shares)
            ranks = {front: _ranks(front, assigned, list(instances)) for front in fronts}
            self.found = ModelEntrances(ranks, shares, assigned)
        return self.found


class EntranceAffinity:
    """Ranks the other nodes of each model for its fronts, so that entrances do not use the same instances first."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelAffinity] = {}

    def entrances(self, nodes: Mapping[str, NodeReport], load: RecentLoad) -> dict[str, ModelEntrances]:
        """Return the entrances of each model.

        Args:
            nodes: Last report of each node, by name.
            load: Recent load of the nodes.
        """
        names = {its.model for node in nodes.values() for its in node.models}
        self._models = {model: self._models.get(model) or _ModelAffinity() for model in names}
        return {model: self._of(model, nodes, load) for model in names}

    def _of(self, model: str, nodes: Mapping[str, NodeReport], load: RecentLoad) -> ModelEntrances:
        reports = dict(sorted(reports_of(model, nodes).items()))
        fronts = {name: its for name, its in reports.items() if nodes[name].entrance}
        usable = {name: its.usable for name, its in reports.items() if not nodes[name].draining}
        loads = {name: load.of(name, its) for name, its in fronts.items()}
        rates = {name: its.queries_per_s for name, its in loads.items() if its is not None}
        return self._models[model].update(tuple(fronts), usable, rates)


def _shares(queries_per_s: Mapping[str, float]) -> dict[str, float]:
    total = sum(queries_per_s.values())
    return {name: rate / total for name, rate in queries_per_s.items() if total and rate / total >= _LEAST_SHARE}


def _alike(shares: Mapping[str, float], known: Mapping[str, float]) -> bool:
    if shares.keys() != known.keys():
        return False
    pairs = [(share, known[name]) for name, share in shares.items()]
    return all(abs(a - b) <= _LARGEST_CHANGE and max(a, b) <= _LARGEST_RATIO * min(a, b) for a, b in pairs)


def _ranks(front: str, assigned: Assignment, nodes: Sequence[str]) -> dict[str, int]:
    return {name: rank for rank, name in enumerate(preferred_nodes(front, assigned, nodes))}
