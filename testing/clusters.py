"""`tidal cluster` on this machine, with all its processes and files in one folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import psutil

from testing.metrics import published
from tidal.server.cleanup import SHARED_MEMORY
from tidal.server.local_http import open_url
from tidal.server.state import ServerState


class LocalCluster:
    """The commands of a cluster whose processes and files belong to one folder.

    Args:
        folder: Folder of the cluster, which must not exist.
        command: Runs `tidal` with arguments and an environment: `testing.serving.tidal` or `tidal_in_process`. A
            process of its own survives that Ray, whose head was killed, ends the process that is connected to it.
    """

    def __init__(self, folder: Path, command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self.folder = folder
        (folder / "run").mkdir(mode=0o700, parents=True)
        (folder / "tmp").mkdir()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "TMPDIR": str(folder / "tmp")}
        self._command = command

    def outcome(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `tidal cluster`."""
        return self._command("cluster", *words, environment=self.environment)

    def run(self, *words: str) -> str:
        """Run a command of `tidal cluster` that has to succeed; return its output.

        Raises:
            RuntimeError: It failed.
        """
        outcome = self.outcome(*words)
        if outcome.returncode:
            raise RuntimeError(f"tidal cluster {' '.join(words)}: exit code {outcome.returncode}: {outcome.stderr}")
        return str(outcome.stdout)

    def status(self) -> dict[str, Any]:
        """Return what `tidal cluster status --json` prints."""
        found: dict[str, Any] = json.loads(self.run("status", "--json"))
        return found

    def record(self, name: str) -> dict[str, Any]:
        """Return the record of the head or a node."""
        found: dict[str, Any] = json.loads((self.folder / "run" / "tidal" / "cluster" / f"{name}.json").read_text())
        return found

    def server(self, name: str) -> ServerState:
        """Return the state of a node's server."""
        (path,) = (Path(self.record(name)["files"]) / "run" / "tidal").glob("*.json")
        return ServerState.model_validate_json(path.read_bytes())

    def ray_processes(self, *names: str) -> list[psutil.Process]:
        """Return Ray's processes of the head or of nodes."""
        return in_sessions(self.record(name)["ray"]["pid"] for name in names)

    def processes(self, *names: str) -> list[psutil.Process]:
        """Return all processes of the head or of nodes: Ray's, `tidal serve`, tritonserver, stubs and guardians."""
        found = self.ray_processes(*names)
        for serve in filter(None, (self.record(name).get("serve") for name in names)):
            try:
                first = psutil.Process(serve["pid"])
                found += [first, *first.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found

    def stop(self) -> list[str]:
        """End the cluster; return the processes and files that are left of it."""
        names = [path.stem for path in (self.folder / "run" / "tidal" / "cluster").glob("*.json")]
        processes = self.processes(*names)
        folders = [Path(self.record(name)["folder"]) for name in names]
        servers = [serve["pid"] for name in names if (serve := self.record(name).get("serve"))]
        outcome = self.outcome("stop")
        left = [f"tidal cluster stop: {outcome.stderr}"] if outcome.returncode else []
        left += [f"process {each.pid}" for each in processes if runs(each)]
        left += [str(path) for path in folders if path.exists()]
        left += [str(path) for pid in servers for path in SHARED_MEMORY.glob(f"tidal_{pid}_*")]
        return left + [str(path) for path in self.folder.rglob("*") if not path.is_dir()]


def in_sessions(leaders: Iterable[int]) -> list[psutil.Process]:
    """Return the processes of sessions, also after their leaders have ended."""
    sessions, found = set(leaders), []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions:
                found.append(process)
        except OSError:
            continue
    return found


def runs(process: psutil.Process) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def row(state: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the row of a node; empty if the cluster does not know it.

    Args:
        state: Document that `tidal cluster status --json` prints.
        name: Name of the node.
    """
    return next((each for each in state["nodes"] if each["node"] == name), {})


def steady(state: dict[str, Any], model: str, names: Collection[str] = ("n1", "n2")) -> bool:
    """Whether all nodes serve a model by a plan that is done, and dispatch to each other.

    Args:
        state: Document that `tidal cluster status --json` prints.
        model: Name of the partitioned model.
        names: Names of the nodes.
    """
    expected = {name: sorted({*names} - {name}) for name in names}
    return state["plans"].get(model, {}).get("state") == "done" and all(
        its.get("state") == "serves"
        and its["drain"] == "no"
        and [others] == [m["dispatches_to"] for m in its["models"]]
        for its, others in ((row(state, name), others) for name, others in expected.items())
    )


def remote_instances(server: ServerState, model: str, **labels: str) -> float:
    """Return the number of instances of other nodes that a server's front uses.

    Args:
        server: State of the server.
        model: Name of the partitioned model.
        labels: Further labels, such as the node of the instances.
    """
    with open_url(f"http://{server.metrics}/metrics", 10) as response:
        return published(str(response.read().decode()), "tidal_arlo_remote_instances", model=model, **labels)
