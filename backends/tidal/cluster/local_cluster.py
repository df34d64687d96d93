"""Several nodes on this machine, each with a `tidal serve`, a repository, ports and shared memory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tidal.cluster.records import StartedProcess
from tidal.errors import NotFound, Unavailable
from tidal.repository.cluster_table import CLUSTER_FILE
from tidal.server.state import ServerState

_START_S = 300.0


@dataclass(frozen=True, slots=True)
class NodeServerProcess:
    """A `tidal serve` that was started for a node.

    Attributes:
        name: Name of the node.
        process: The process.
        folder: Folder with its repository, its state and its output.
    """

    name: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def runtime(self) -> Path:
        """Folder for `XDG_RUNTIME_DIR`, by which other processes of the node discover the server."""
        return self.folder / "run"

    @property
    def started(self) -> StartedProcess:
        """The process for a record."""
        return StartedProcess.of(self.process.pid)

    def wait(self) -> ServerState:
        """Wait until it serves.

        Raises:
            Unavailable: It ended, or does not serve in time.
        """
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            for path in (self.runtime / "tidal").glob("*.json"):
                try:
                    return ServerState.model_validate_json(path.read_bytes())
                except (OSError, ValidationError):
                    continue
            if self.process.poll() is not None:
                output = (self.folder / "output").read_text(errors="replace").strip()
                raise Unavailable(f"the server of node '{self.name}' did not start: {output or 'no output'}")
            time.sleep(0.05)
        raise Unavailable(f"the server of node '{self.name}' does not serve after {_START_S:g} s, see {self.folder}")


def local_names(count: int) -> list[str]:
    """Return the names of the nodes of one machine: `n1`, `n2` and so on."""
    return [f"n{number}" for number in range(1, count + 1)]


def shared_cores(count: int) -> list[set[int]]:
    """Divide the cores that this process may use among nodes; nodes share cores where there are fewer."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:
        return [{cores[node % len(cores)]} for node in range(count)]
    return [set(cores[node::count]) for node in range(count)]


def copy_repository(repository: Path, target: Path) -> None:
    """Copy a repository with hard links, so that the files of versions take no space twice.

    Files that are replaced while a model serves, such as its allocation, are replaced in one of them only.

    Args:
        repository: Folder of the model repository.
        target: Folder of the copy, which must not exist.

    Raises:
        NotFound: The repository is not a folder.
    """
    if not repository.is_dir():
        raise NotFound(f"model repository '{repository}' is not a folder")
    shutil.copytree(repository, target, copy_function=_link, ignore=shutil.ignore_patterns(CLUSTER_FILE))


def start_server(name: str, repository: Path, folder: Path, cores: set[int] | None) -> NodeServerProcess:
    """Start the server of a node on free ports.

    Args:
        name: Name of the node.
        repository: Folder of the model repository, which is copied.
        folder: Folder of the node, which must not exist.
        cores: Cores that it may use; None: all of this process.
    """
    folder.mkdir(mode=0o700, parents=True)
    (folder / "run").mkdir(mode=0o700)
    (folder / "tmp").mkdir()
    copy_repository(repository, folder / "models")
    ports = [part for kind in ("http", "grpc", "metrics") for part in (f"--{kind}-port", "0")]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidal_client.main", "serve", str(folder / "models"), *ports],
            env={
                **os.environ,
                "XDG_RUNTIME_DIR": str(folder / "run"),
                "XDG_STATE_HOME": str(folder / "log"),
                # In the node's folder, which is removed also if the server and its guardian are killed.
                "TMPDIR": str(folder / "tmp"),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if cores is not None:
        os.sched_setaffinity(process.pid, cores)  # before it starts threads and processes, which inherit it
    return NodeServerProcess(name, process, folder)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
