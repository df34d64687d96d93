"""The nodes as the controller knows them: their reports, their load, and the tables that they are known to have."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidal.controller.affinity import EntranceAffinity
from tidal.controller.agents import Agents
from tidal.controller.observed import RecentLoad
from tidal.controller.reports import NodeReport, entrances, node_tables, without_server
from tidal.errors import TidalError

REPORT_S = 5.0


class KnownNodes:
    """Reads the agents of all nodes and writes their tables.

    Args:
        agents: Calls of the agents.
        clock: Current time in seconds.
        gone: Called with the name of each node that has left, while its last report is known.

    Attributes:
        reports: Last report of each node, by name.
        silent: Nodes whose agents do not answer, with the reason.
        reported_at: Time of the last report of each node, in seconds since 1970.
        outdated: Nodes whose fronts dispatch by an old table of nodes.
        load: Recent load of the nodes.
    """

    def __init__(self, agents: Agents, clock: Callable[[], float], gone: Callable[[str], None]) -> None:
        self._agents, self._clock, self._gone = agents, clock, gone
        self.reports: dict[str, NodeReport] = {}
        self.silent: dict[str, str] = {}
        self.reported_at: dict[str, float] = {}
        self.outdated: frozenset[str] = frozenset()
        self.load, self._affinity = RecentLoad(), EntranceAffinity()
        self._tables: dict[str, Any] = {}  # that nodes are known to have

    def read(self) -> list[str]:
        """Read all agents; return the names of those that have never answered."""
        names = self._agents.names()
        answers = self._agents.call(dict.fromkeys(names, ("report",)), REPORT_S)
        for name in self.reports.keys() - set(names):
            self._gone(name)
            self.reported_at.pop(name, None)
            self._tables.pop(name, None)
        reports, silent = {}, {}
        for name in names:
            answer = answers.get(name)
            known = self.reports.get(name)
            if isinstance(answer, NodeReport):
                reports[name] = answer if known is None else without_server(known, answer)
                self.load.observe(answer, self._clock())
                self.reported_at[name] = time.time()
            else:
                silent[name] = str(answer)
                if known is not None:
                    reports[name] = known
        self.reports, self.silent = reports, silent
        return sorted(set(names) - reports.keys())

    def write_tables(self, limits: dict[str, dict[str, tuple[int, ...]]] | None = None) -> None:
        """Write tables and lists of servers; a node that cannot be written now gets them in the next pass.

        Args:
            limits: Instances by runtime that nodes are about to have at most, by model and node.
        """
        tables = node_tables(self.reports, limits, self._affinity.entrances(self.reports, self.load))
        servers = entrances(self.reports)
        answers = self._agents.call(
            {name: ("write_tables", its, servers) for name, its in tables.items() if self.answers(name)}, REPORT_S
        )
        self._tables |= {name: tables[name] for name, answer in answers.items() if not isinstance(answer, TidalError)}
        self.outdated = frozenset(name for name, its in tables.items() if self._tables.get(name) != its)

    def answers(self, name: str) -> bool:
        """Return whether a node's agent and its server answer."""
        return name not in self.silent and self.reports[name].state == "serves"
