"""Tables of fronts by where queries arrive, kept while that changes little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.cluster.made_up import MODEL, PROFILE
from tidal.controller.affinity import EntranceAffinity
from tidal.controller.counts import ModelCounts
from tidal.controller.observed import RecentLoad
from tidal.controller.reports import ModelEntrances, ModelReport, NodeReport, node_tables

NAMES = "abcdef"


class Cluster:
    """Nodes whose entrances have received so many queries."""

    def __init__(self) -> None:
        self.affinity, self.load = EntranceAffinity(), RecentLoad()
        self.received = dict.fromkeys(NAMES, 0.0)
        self.nodes: dict[str, NodeReport] = {}
        self.now = 0.0

    def entrances(self, **queries: float) -> ModelEntrances:
        """Let these queries arrive for longer than loads are remembered, and return what fronts learn."""
        for _ in range(20):
            self.now += 1.0
            for name in self.received:
                self.received[name] += queries.get(name, 0.0)
                self.nodes[name] = self._report(name)
                self.load.observe(self.nodes[name], self.now)
        return self.affinity.entrances(self.nodes, self.load)[MODEL]

    def _report(self, name: str) -> NodeReport:
        counts = replace(ModelCounts.none(3), queries=(self.received[name], 0.0, 0.0))
        model = ModelReport(MODEL, 1, PROFILE, 3, (1, 1, 1), (1, 1, 1), False, counts)
        return NodeReport(name, "serves", grpc=f"{name}:1", models=(model,))


def order(ranks: Mapping[str, int]) -> str:
    return "".join(sorted(ranks, key=lambda name: ranks[name]))


def test_nodes_are_assigned_to_the_nodes_where_queries_arrive() -> None:
    cluster = Cluster()
    assert order(cluster.entrances().ranks["c"]) == "defab"  # no query yet: from the front's own node on
    found = cluster.entrances(a=10.0, b=10.0)
    ranks = found.ranks
    assert (order(ranks["a"])[:2], order(ranks["b"])[:2]) == ("ce", "df")
    assert order(ranks["c"])[-2:] == "ab"  # what the entrances use first
    tables = node_tables(cluster.nodes, None, {MODEL: found})
    assert order({name: node.rank for name, node in tables["a"][MODEL].nodes.items()}) == order(ranks["a"])
    assert (tables["a"][MODEL].share, tables["c"][MODEL].share) == (0.5, 1.0)
    assigned = {name: {each for each, its in row[MODEL].nodes.items() if its.assigned} for name, row in tables.items()}
    assert assigned == {"a": {"c", "e"}, "b": {"d", "f"}, **{name: set() for name in "cdef"}}


def test_small_changes_and_pauses_change_nothing() -> None:
    cluster = Cluster()
    found = cluster.entrances(a=10.0, b=10.0, c=2.0)
    assert cluster.entrances(a=11.5, b=10.0, c=2.0, d=0.2) is found
    assert cluster.entrances() is found
    assert cluster.entrances(a=10.0, b=10.0, c=0.8) is not found
    assert cluster.entrances(a=10.0, b=1.0, c=0.8) is not found


def test_an_entrance_that_begins_gets_nodes_and_one_that_ends_gives_them_back() -> None:
    cluster = Cluster()
    assert order(cluster.entrances(a=10.0).ranks["a"]) == "bcdef"
    assert order(cluster.entrances(a=10.0, f=10.0).ranks["a"])[:2] == "bd"
    del cluster.received["f"], cluster.nodes["f"]
    assert order(cluster.entrances(a=10.0).ranks["a"]) == "bcde"


def test_a_node_that_drains_is_no_longer_assigned() -> None:
    cluster = Cluster()
    cluster.entrances(a=10.0)
    nodes = {**cluster.nodes, "c": replace(cluster.nodes["c"], draining=True)}
    assert order(cluster.affinity.entrances(nodes, cluster.load)[MODEL].ranks["a"]) == "bdef"
    assert (
        order(cluster.affinity.entrances(nodes, cluster.load)[MODEL].ranks["c"]) == "fedba"
    )  # it dispatches while it drains


def test_a_model_that_is_gone_is_forgotten() -> None:
    cluster = Cluster()
    cluster.entrances(a=10.0)
    assert cluster.affinity.entrances({}, cluster.load) == {}
