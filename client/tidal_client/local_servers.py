"""Discovery of this user's running `tidal serve` processes by their state files.

A state file is JSON, `<folder>/<HTTP port>.json`. `tidal.server.state` writes it and uses the functions here to read
it. Unknown members are ignored.
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
    """Addresses of a running server, each as HOST:PORT."""

    http: str
    grpc: str
    #: Whether the gRPC endpoint accepts only TLS connections, which the client does not support.
    grpc_tls: bool = False
    #: Status endpoint of its `tidal serve`, as HOST:PORT; None if it has none.
    status: str | None = None
    #: Prometheus endpoint, as HOST:PORT; None if unknown.
    metrics: str | None = None

    def url(self, protocol: Literal["http", "grpc"]) -> str:
        """Return the URL for a client; over HTTP if the gRPC endpoint accepts only TLS connections."""
        plain_grpc = protocol == "grpc" and not self.grpc_tls
        return f"grpc://{self.grpc}" if plain_grpc else f"http://{self.http}"


def state_folder() -> Path:
    """Return the folder of the state files: `$XDG_RUNTIME_DIR/tidal`, else `tidal-<uid>` in the temporary folder.

    The folder may not exist.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "tidal" if runtime else Path(tempfile.gettempdir()) / f"tidal-{os.getuid()}"


def is_private(folder: Path) -> bool:
    """Whether a path is a folder of this user that no other user may read or write.

    Raises:
        OSError: The path cannot be read.
    """
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def process_started(pid: int) -> float | None:
    """Return the start time of a process in seconds since the epoch; None if it is not running."""
    try:
        # The name may contain spaces and parentheses and ends at the last parenthesis; the start time is field 22.
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        (boot,) = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError):
        return None
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, started: float) -> bool:
    """Whether a process is still running, and its id was not reused.

    Args:
        pid: Process id.
        started: Start time of the process, in seconds since the epoch.
    """
    actual = process_started(pid)
    return actual is not None and abs(actual - started) < 1.0


def running_servers() -> list[LocalServer]:
    """Return this user's running servers by HTTP port; none if the state folder is not private to this user."""
    if sys.platform != "linux":  # `tidal serve` requires Linux; other systems lack /proc
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
    """Return the URL of the only running server; if none is running, the one of the default port.

    Args:
        protocol: Protocol of the URL.

    Raises:
        InvalidArgument: Several servers are running.
    """
    servers = running_servers()
    if len(servers) > 1:
        urls = ", ".join(server.url(protocol) for server in servers)
        raise InvalidArgument(f"several servers are running: choose one of {urls}")
    return servers[0].url(protocol) if servers else f"{protocol}://127.0.0.1:{_DEFAULT_PORTS[protocol]}"


def _read(file: Path) -> Iterator[LocalServer]:
    """Yield the server of a state file if it is running and the file is valid."""
    try:
        state: Any = json.loads(file.read_bytes())
        addresses = state.get("status"), state.get("metrics")
        server = LocalServer(state["http"], state["grpc"], bool(state.get("grpc_tls")), *addresses)
        alive = is_alive(state["pid"], state["pid_started"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if alive:
        yield server
