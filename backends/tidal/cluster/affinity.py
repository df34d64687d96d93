"""Which nodes the fronts of each node use first, from where queries arrive. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidal.arlo.scheduling import Assignment, assign_nodes, preferred_nodes
from tidal.cluster.observed import RecentLoad
from tidal.cluster.reports import NodeReport, reports_of

# Entrances with a smaller share of the queries get no nodes beside their own.
_LEAST_SHARE = 0.02
# Nodes are assigned again once an entrance's share has changed by more than this.
_LARGEST_CHANGE = 0.1

#: Rank of each other node by node: 0 is used first.
Ranks = Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class _ModelAffinity:
    """Ranks of a model's nodes, kept until the nodes, their instances or the entrances' shares change."""

    instances: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    fronts: tuple[str, ...] = ()
    ranks: Ranks = field(default_factory=dict)

    def update(
        self, fronts: tuple[str, ...], instances: Mapping[str, Sequence[int]], queries_per_s: Mapping[str, float]
    ) -> Ranks:
        shares = _shares(queries_per_s) or self.shares
        if not _alike(shares, self.shares) or instances != self.instances or fronts != self.fronts:
            self.instances, self.shares, self.fronts = instances, shares, fronts
            assigned = assign_nodes(instances, {name: share for name, share in shares.items() if name in fronts})
            self.ranks = {front: _ranks(front, assigned, list(instances)) for front in fronts}
        return self.ranks


class EntranceAffinity:
    """Ranks the other nodes of each model for its fronts, so that entrances do not use the same instances first."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelAffinity] = {}

    def ranks(self, nodes: Mapping[str, NodeReport], load: RecentLoad) -> dict[str, Ranks]:
        """Return the ranks of nodes by model and front.

        Args:
            nodes: Last report of each node, by name.
            load: Recent load of the nodes.
        """
        names = {its.model for node in nodes.values() for its in node.models}
        self._models = {model: self._models.get(model) or _ModelAffinity() for model in names}
        return {model: self._of(model, nodes, load) for model in names}

    def _of(self, model: str, nodes: Mapping[str, NodeReport], load: RecentLoad) -> Ranks:
        reports = dict(sorted(reports_of(model, nodes).items()))
        usable = {name: its.usable for name, its in reports.items() if not nodes[name].draining}
        loads = {name: load.of(name, its) for name, its in reports.items()}
        rates = {name: its.queries_per_s for name, its in loads.items() if its is not None}
        return self._models[model].update(tuple(reports), usable, rates)


def _shares(queries_per_s: Mapping[str, float]) -> dict[str, float]:
    total = sum(queries_per_s.values())
    return {name: rate / total for name, rate in queries_per_s.items() if total and rate / total >= _LEAST_SHARE}


def _alike(shares: Mapping[str, float], known: Mapping[str, float]) -> bool:
    return shares.keys() == known.keys() and all(abs(shares[name] - known[name]) <= _LARGEST_CHANGE for name in shares)


def _ranks(front: str, assigned: Assignment, nodes: Sequence[str]) -> dict[str, int]:
    return {name: rank for rank, name in enumerate(preferred_nodes(front, assigned, nodes))}
