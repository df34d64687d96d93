"""The agent of a node: a Ray actor that is pinned to it, attached to its running `tidal serve`.

It keeps nothing that it could not read again, except what is in its memory file: whether the node drains, and the last
plans, which a restarted controller reads. Its end, and that of all of Ray, changes nothing for queries: the last
allocation and the last table of nodes stay in their files.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tidal import device
from tidal.cluster.builds import NodeDevice
from tidal.cluster.node_metrics import NodeMetrics
from tidal.controller.metrics_page import MetricsPage, PageAddress
from tidal.controller.reports import NodeReport
from tidal.repository.cluster_table import ClusterTable
from tidal.repository.entries import write_atomically
from tidal.repository.validated_file import read_validated

# Prometheus reads what the controller has read, and the server itself while no controller does.
_REPORT_AGE_S = 5.0


class NodeServer(Protocol):
    """The server of a node; `tidal.controller.local_node.LocalNode`, and a made-up one in tests."""

    def read(self) -> NodeReport:
        """Return what the server has and has done."""

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        """Change a model's instances, by max_length in tokens, without losing a request."""

    def write_table(self, model: str, table: ClusterTable) -> None:
        """Write the other nodes that a model's fronts dispatch to."""

    def stand_alone(self, model: str) -> None:
        """Let a model's fronts serve without other nodes."""


class AgentMemory(BaseModel):
    """What an agent keeps over its restarts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draining: bool = Field(default=False, description="whether the node is being drained")
    released: bool = Field(default=False, description="whether the controller drains it because it is not required")
    plans: dict[str, Any] = Field(default_factory=dict, description="last plan of each model")


class NodeAgent:
    """Reports a node to the controller and carries out what that decides.

    Methods may be called at the same time: reports go on while instances change.

    Args:
        server: Server of the node.
        memory: File that it keeps over its restarts.
        entrances: File that it writes the cluster's servers to, for gateways on this machine.
        metrics: Address of its metrics; None: not served.
    """

    def __init__(self, server: NodeServer, memory: Path, entrances: Path, metrics: PageAddress | None = None) -> None:
        self._server, self._file, self._entrances = server, memory, entrances
        self._memory = read_validated(memory, AgentMemory) or AgentMemory()
        self._lock = threading.Lock()
        self._left = False
        self._reading = threading.Lock()
        self._last: tuple[float, NodeReport] | None = None
        self._metrics = NodeMetrics(lambda: self._report(_REPORT_AGE_S))
        self._page = MetricsPage(self._metrics.registry, metrics)
        self._page.serve()

    def report(self) -> NodeReport:
        """Return what the node has and has done."""
        self._metrics.controller_read()
        found = self._report(0.0)
        if found.entrance and found.gateway_server and not self._entrances.is_file():  # until the controller knows it
            self._write_entrances([found.gateway_server])
        return found

    def _report(self, max_age_s: float) -> NodeReport:
        """Return the last report of the server if it is not too old, else a new one."""
        with self._reading:
            if self._last is None or time.monotonic() - self._last[0] >= max_age_s:
                self._last = time.monotonic(), self._server.read()
            report = self._last[1]
        memory, page = self._memory, self._page.serve()
        return replace(report, draining=memory.draining, released=memory.released, pid=os.getpid(), metrics=page)

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        """Change a model's instances; return when the model uses them.

        Args:
            model: Name of the model.
            instances: Requested instances by max_length in tokens, for every runtime.

        Raises:
            TidalError: The change was not completed; see `tidal.server.allocate.allocate`.
        """
        with self._metrics.change(model):
            self._server.allocate(model, instances)

    def write_tables(self, tables: Mapping[str, ClusterTable], servers: Sequence[str]) -> None:
        """Write the other nodes that fronts dispatch to, and the servers that gateways use.

        Args:
            tables: Other nodes by model.
            servers: Servers of the cluster in the form of `tidal gateway --server`; none leaves the file as it is.

        Raises:
            Unavailable: A model's instances are being changed, or the server is not there.
        """
        if self._left:
            return
        self._write_entrances(servers)
        for model, table in tables.items():
            self._server.write_table(model, table)
        self._metrics.tables_written()

    def set_draining(self, draining: bool, released: bool = False) -> None:
        """Begin or end to drain the node; the controller acts on the next report.

        Args:
            draining: Whether to begin.
            released: Whether the controller drains it because it is not required.
        """
        self._remember(draining=draining, released=released)

    def leave(self, models: Sequence[str]) -> None:
        """Let models serve alone, and refuse later tables: the node leaves the cluster, gateways use it alone."""
        with self._lock:
            self._left = True
        server = self._server.read().gateway_server
        self._write_entrances([server] if server else ())
        for model in models:
            self._server.stand_alone(model)

    def device(self) -> NodeDevice:
        """Return what versions for this node are built for: its GPU, or else its processor."""
        import ray

        found = device.gpu() if device.has_gpu() else device.cpu()
        return NodeDevice(ray.get_runtime_context().get_node_id(), str(found))

    def plans(self) -> dict[str, Any]:
        """Return the last plan of each model, as the controller passed them."""
        return dict(self._memory.plans)

    def remember_plan(self, model: str, plan: Mapping[str, Any]) -> None:
        """Keep the last plan of a model for a restarted controller."""
        self._remember(plans={**self._memory.plans, model: dict(plan)})

    def _write_entrances(self, servers: Sequence[str]) -> None:
        text = json.dumps({"servers": list(servers)}) + "\n"
        if servers and (not self._entrances.is_file() or self._entrances.read_text(encoding="utf-8") != text):
            write_atomically(self._entrances, text)

    def _remember(self, **changes: Any) -> None:
        with self._lock:
            self._memory = self._memory.model_copy(update=changes)
            write_atomically(self._file, self._memory.model_dump_json(indent=1) + "\n")
