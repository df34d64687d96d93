"""Made-up servers of nodes, kept in files so that actors and tests see the same, and agents without Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidal.cluster.agent import NodeAgent
from tidal.controller.agents import LocalAgents
from tidal.controller.counts import ModelCounts
from tidal.controller.reports import ModelProfile, ModelReport, NodeReport
from tidal.errors import Unavailable
from tidal.repository.cluster_table import ClusterTable, read_cluster_table, write_cluster_table

LENGTHS = (16, 32, 64)
PROFILE = ModelProfile(LENGTHS, (0.002, 0.004, 0.008), 0.4)
MODEL = "tiny"
OTHER = "other"


class FileServer:
    """The server of a node, in a folder: `server.json` has what it reports, `cluster.json` its table.

    It has a second model on the same devices where `other` is set to that one's instances.

    Args:
        folder: Folder of the node, whose name is that of the node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, instances: tuple[int, ...] = (1, 1, 1), devices: int = 3) -> FileServer:
        folder.mkdir(parents=True)
        server = cls(folder)
        queries = [0.0] * len(LENGTHS)
        server.set(instances=instances, devices=devices, queries=queries, busy_s=queries, seconds=0.0)
        return server

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "server.json").read_text())
        return found

    def set(self, **facts: Any) -> None:
        path = self.folder / "server.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**known, **facts}))
        new.replace(path)

    @property
    def table(self) -> dict[str, dict[int, int]]:
        return {name: dict(node.instances) for name, node in read_cluster_table(self.folder).nodes.items()}

    def read(self) -> NodeReport:
        name, facts = self.folder.name, self.facts
        if facts.get("state", "serves") != "serves":
            return NodeReport(name, facts["state"], "made up", entrance=facts.get("entrance", True))
        none = ModelCounts.none(len(LENGTHS))
        answered = {each: facts.get(each, 0) for each in ("requests", "slow", "critical", "latency_s")}
        counts = replace(none, queries=tuple(facts["queries"]), busy_s=tuple(facts["busy_s"]), **answered)
        instances = tuple(facts["instances"])
        problem, version = facts.get("problem"), facts.get("version", 1)
        model = ModelReport(
            MODEL,
            version,
            PROFILE,
            facts["devices"],
            instances,
            instances,
            bool(facts.get("unfinished")),
            counts,
            problem,
        )
        models = [model]
        if "other" in facts:
            other = tuple(facts["other"])
            models = [
                replace(model, devices=facts["devices"] - sum(other)),
                replace(
                    model,
                    model=OTHER,
                    devices=facts["devices"] - sum(instances),
                    instances=other,
                    usable=other,
                    counts=none,
                ),
            ]
        return NodeReport(
            node=name,
            state="serves",
            grpc=f"{name}:1",
            entrance=facts.get("entrance", True),
            gateway_server=f"{name}:1,status={name}:2",
            identity=(1, facts.get("process", 1)),
            cores=2,
            models=tuple(models),
            tables=((MODEL, tuple(self.table)),),
        )

    @property
    def servers(self) -> list[str]:
        """Servers of the cluster that gateways use, from the agent's file."""
        path = self.folder / "servers.json"
        found: list[str] = json.loads(path.read_text())["servers"] if path.is_file() else []
        return found

    def allocate(self, model: str, instances: Mapping[int, int]) -> None:
        if self.facts.get("refuse"):
            raise Unavailable("made-up failure")
        history = self.facts.get("history", [])
        row = [instances[length] for length in LENGTHS]
        if model == OTHER:
            self.set(other=row)
            return
        self.set(instances=row, unfinished=False, history=[*history, row])

    def write_table(self, model: str, table: ClusterTable) -> None:
        if self.facts.get("refuse_table"):
            raise Unavailable("made-up failure")
        if model == OTHER:
            return
        write_cluster_table(self.folder, table)

    def stand_alone(self, model: str) -> None:
        self.write_table(model, ClusterTable(nodes={}))
        self.set(entrance=True)


class AgentsInProcess(LocalAgents):
    """Agents without Ray, by the names of their nodes. A node in `silent` does not answer."""

    def __init__(self, *servers: FileServer) -> None:
        super().__init__(
            {
                each.folder.name: NodeAgent(each, each.folder / "memory.json", each.folder / "servers.json")
                for each in servers
            }
        )
        self.silent: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    def call(self, requests: Mapping[str, tuple[Any, ...]], timeout_s: float) -> dict[str, Any]:
        self.calls += [(name, method) for name, (method, *_) in requests.items()]
        silent = {
            name: Unavailable(f"the agent of node '{name}' does not answer") for name in requests.keys() & self.silent
        }
        answering = {name: each for name, each in requests.items() if name not in silent}
        return {**super().call(answering, timeout_s), **silent}
