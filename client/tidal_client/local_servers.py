"""Servers that `tidal serve` of this user runs on this machine, by the state file that each writes.

A state file is JSON, `<folder>/<HTTP port>.json`; `tidal.server.state` writes it, and both sides find and judge it by
the functions here. Names that this version does not know are left out.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tidal_client.errors import InvalidArgument

_DEFAULT_PORTS: Final = {"http": 8000, "grpc": 8001}


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Where a running server listens, host:port each."""

    http: str
    grpc: str
    #: Whether the gRPC endpoint accepts TLS connections only, which the client does not make.
    grpc_tls: bool = False

    def url(self, protocol: Literal["http", "grpc"]) -> str:
        """URL for a client: of this protocol, or of HTTP where the gRPC endpoint accepts TLS connections only."""
        plain_grpc = protocol == "grpc" and not self.grpc_tls
        return f"grpc://{self.grpc}" if plain_grpc else f"http://{self.http}"


def state_folder() -> Path:
    """Path of the folder with the state files: `$XDG_RUNTIME_DIR/tidal`, else one of this user's among temporary files.

    It need not exist.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "tidal" if runtime else Path(tempfile.gettempdir()) / f"tidal-{os.getuid()}"


def is_private(folder: Path) -> bool:
    """Whether a path is a folder of this user that nobody else may read or write.

    Raises:
        OSError: it cannot be looked up.
    """
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def process_started(pid: int) -> float | None:
    """Start time of a process in seconds since the epoch; None where it does not run."""
    try:
        # Its name, which may hold spaces and brackets, comes before the last bracket; the start time is field 22.
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        (boot,) = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError):
        return None
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, started: float) -> bool:
    """Whether the process of this id still runs and is not a later one.

    Args:
        pid: process id.
        started: its start time in seconds since the epoch.
    """
    found = process_started(pid)
    return found is not None and abs(found - started) < 1.0


def running_servers() -> list[LocalServer]:
    """Servers of this user that run, by HTTP port; none where the folder of the state files is not this user's own."""
    if sys.platform != "linux":  # where `tidal serve` does not run, and user ids and /proc may be missing
        return []
    folder = state_folder()
    try:
        files = (
            sorted(folder.glob("*.json"), key=lambda file: (len(file.name), file.name)) if is_private(folder) else []
        )
    except OSError:
        return []
    return [server for file in files for server in _read(file)]


def choose_url(protocol: Literal["http", "grpc"]) -> str:
    """URL of the only server that runs; that of the default port where none does.

    Raises:
        InvalidArgument: several servers run.
    """
    servers = running_servers()
    if len(servers) > 1:
        urls = ", ".join(server.url(protocol) for server in servers)
        raise InvalidArgument(f"several servers are running: choose one of {urls}")
    return servers[0].url(protocol) if servers else f"{protocol}://127.0.0.1:{_DEFAULT_PORTS[protocol]}"


def _read(file: Path) -> Iterator[LocalServer]:
    """The server of a state file, or nothing where it has ended or the file is no state."""
    try:
        state: Any = json.loads(file.read_bytes())
        server = LocalServer(state["http"], state["grpc"], bool(state.get("grpc_tls")))
        alive = is_alive(state["pid"], state["pid_started"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if alive:
        yield server
