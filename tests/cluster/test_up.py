"""A cluster of two real servers on this machine: its controller, its agents and its nodes fail, and no query does."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testing.metrics import published
from testing.serving import tidal_in_process
from testing.waiting import until
from tests.arlo.support import Traffic
from tidal.server.local_http import open_url
from tidal.server.state import ServerState

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
]


class LocalCluster:
    """The commands of a cluster whose processes and files belong to one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "run").mkdir(mode=0o700)
        (folder / "tmp").mkdir()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "TMPDIR": str(folder / "tmp")}

    def run(self, *words: str) -> str:
        outcome = tidal_in_process("cluster", *words, environment=self.environment)
        assert outcome.returncode == 0, outcome.stderr
        return str(outcome.stdout)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json"))
        return found

    def record(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run" / "tidal" / "cluster" / f"{name}.json").read_text())
        return found

    def server(self, name: str) -> ServerState:
        (path,) = (Path(self.record(name)["files"]) / "run" / "tidal").glob("*.json")
        return ServerState.model_validate_json(path.read_bytes())

    def processes(self) -> list[psutil.Process]:
        """Processes that belong to it: those of the sessions that it started."""
        sessions = set()
        for name in ("head", "n1", "n2"):
            record = self.record(name)
            sessions |= {each["pid"] for each in (record["ray"], record.get("serve")) if each}
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) in sessions:
                    found.append(process)
            except OSError:
                continue
        return found


def row(state: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in state["nodes"] if each["node"] == name)
    return found


def steady(state: dict[str, Any]) -> bool:
    """Whether both nodes serve by a plan that is done, and dispatch to each other."""
    plan = state["plans"].get("tiny", {})
    rows = {each["node"]: each for each in state["nodes"]}
    return plan.get("state") == "done" and all(
        rows[name]["state"] == "serves" and [its["dispatches_to"] for its in rows[name]["models"]] == [[other]]
        for name, other in (("n1", "n2"), ("n2", "n1"))
    )


def ran(server: ServerState, length: int) -> float:
    with open_url(f"http://{server.metrics}/metrics", 10) as response:
        return published(str(response.read().decode()), "nv_inference_count", model=f"tiny_len{length}")


@pytest.fixture(scope="module")
def cluster(partitioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("cluster"))
    try:
        running.run("up", "--local", "2", str(partitioned), "--devices", "3")
        assert until(lambda: steady(running.status()), 60)
        yield running
    finally:
        running.run("stop")


def test_it_serves_through_every_failure_and_ends_without_a_trace(cluster: LocalCluster) -> None:
    servers = {name: cluster.server(name) for name in ("n1", "n2")}
    before = cluster.status()
    with (
        Traffic(f"grpc://{servers['n1'].grpc}", "tiny") as first,
        Traffic(f"grpc://{servers['n2'].grpc}", "tiny") as second,
    ):
        loads = first, second

        def answered(more: int) -> bool:
            counts = [load.answered for load in loads]
            return until(lambda: all(load.answered > n + more for load, n in zip(loads, counts, strict=True)))

        assert answered(50)

        os.kill(before["controller"]["pid"], signal.SIGKILL)
        assert answered(20)
        assert until(lambda: cluster.status()["controller"]["pid"] != before["controller"]["pid"])
        assert until(lambda: steady(cluster.status()))
        after = cluster.status()
        assert after["plans"] == before["plans"]
        assert [each["models"][0]["instances"] for each in after["nodes"]] == [
            each["models"][0]["instances"] for each in before["nodes"]
        ]

        agent = row(after, "n2")["agent"]
        os.kill(agent, signal.SIGKILL)
        assert answered(20)
        assert until(lambda: row(cluster.status(), "n2").get("agent") not in (None, agent) and steady(cluster.status()))

        assert json.loads(cluster.run("drain", "n2", "--json"))["drain"] == "drained"
        state = cluster.status()
        assert row(state, "n2")["models"][0]["instances"] == {"16": 0, "32": 0, "64": 1}
        assert row(state, "n1")["models"][0]["dispatches_to"] == []
        short = ran(servers["n1"], 16) + ran(servers["n1"], 32)
        assert answered(50)
        # Its own clients are still served, by instances of the other node.
        assert until(lambda: ran(servers["n1"], 16) + ran(servers["n1"], 32) > short)
        assert "queries_per_s" in row(cluster.status(), "n1")["models"][0]
    assert [load.failures for load in loads] == [[], []]

    processes = cluster.processes()
    assert len(processes) > 8
    cluster.run("stop")
    assert [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert list((cluster.folder / "tmp").glob("tidal-*")) == []
    assert not list((cluster.folder / "run" / "tidal" / "cluster").glob("*.json"))
