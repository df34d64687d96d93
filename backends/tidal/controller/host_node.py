"""The only node of `tidal controller`: the server of this machine, and the agent that the controller calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidal.controller.event_log import EventLog
from tidal.controller.fronts import ServedFront
from tidal.controller.host_journal import Outcome
from tidal.controller.local_node import LocalNode
from tidal.controller.reports import NodeReport
from tidal.controller.series import Series, slo_of
from tidal.controller.server_finder import ControlledServer
from tidal.errors import NotFound, TidalError, Unsupported
from tidal.repository.cluster_table import ClusterTable
from tidal.server.allocate import partitioned_model

#: Name of the only node: nothing that is reported has to name it.
NODE = ""
_LOOPBACK = "127.0.0.1"


class HostNode(LocalNode):
    """The server of this machine with the models that the user named, and its agent: there are no other nodes.

    Args:
        find: Returns the server; raises Unavailable while it is down.
        models: Names of the models; empty: all partitioned models of the server.
        events: Log that the steps of a change are written to.
        outcome: Receives the error of a named model that is not partitioned.
    """

    def __init__(
        self, find: Callable[[], ControlledServer], models: Sequence[str], events: EventLog, outcome: Outcome
    ) -> None:
        super().__init__(NODE, find, _LOOPBACK)
        self._models, self._events, self._outcome = models, events, outcome
        self._checked = False

    def report(self) -> NodeReport:
        """Return what the server has and has done; the first time that it answers, check the names of the models."""
        if not self._checked:
            try:
                repository = self._find().state.repository
                for model in self._models:
                    partitioned_model(repository, model)
            except (TidalError, OSError, ValueError) as error:  # a server that is shutting down may answer anything
                if isinstance(error, NotFound | Unsupported):
                    self._outcome.end(error)
                return NodeReport(NODE, "away", str(error))
            self._checked = True
        return self.read()

    def write_tables(self, tables: Mapping[str, ClusterTable], servers: Sequence[str]) -> None:
        """Write nothing: fronts dispatch to no other node, and a table that they have is not the controller's."""

    def plans(self) -> dict[str, Any]:
        """Return no plan: a new controller observes a period of its own."""
        return {}

    def remember_plan(self, model: str, plan: Mapping[str, Any]) -> None:
        """Keep nothing."""

    def _step(self, model: str, line: str) -> None:
        self._events.record("step", line, model)

    def _controls(self, model: str) -> bool:
        return not self._models or model in self._models

    def _blocked(self, late: Mapping[str, int], series: Series) -> str | None:
        """Wait for a model that occupies devices, but not for one that serves other runtimes than it publishes."""
        return super()._blocked({name: n for name, n in late.items() if slo_of(series, name, n) is None}, series)


class DryNode(HostNode):
    """A server whose instances stay as they are: it reports those that it would have after added and released ones.

    Otherwise the same decision would follow every second.
    """

    def __init__(
        self, find: Callable[[], ControlledServer], models: Sequence[str], events: EventLog, outcome: Outcome
    ) -> None:
        super().__init__(find, models, events, outcome)
        self._present: dict[str, dict[int, int]] = {}
        self._assumed: dict[str, dict[int, int]] = {}

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        """Note a number of instances instead of changing it."""
        if sum(instances.values()) != sum(self._present[model].values()):
            self._assumed[model] = dict(instances)

    def _wanted(self, front: ServedFront) -> dict[int, int]:
        present = super()._wanted(front)
        if present != self._present.get(front.model):
            self._present[front.model] = present
            self._assumed.pop(front.model, None)
        return self._assumed.get(front.model, present)

    def _unfinished(self, folder: Path) -> bool:
        return False

    def _lock(self, folder: Path) -> str | None:
        return None
