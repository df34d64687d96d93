"""State files of running servers, for other commands of the same user: endpoints, admin key, process, restarts.

One file per server, `<folder>/<http port>.json`, readable by its owner only. A file whose process has ended is ignored
and removed.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import tidal_client.local_servers
from tidal.errors import InvalidArgument
from tidal.server.control import ServerControl


class ServerState(BaseModel):
    """A running server, as written to its state file."""

    model_config = ConfigDict(frozen=True)

    http: str = Field(description="host:port of the HTTP endpoint")
    grpc: str = Field(description="host:port of the gRPC endpoint")
    metrics: str = Field(description="host:port of the Prometheus endpoint")
    grpc_tls: bool = Field(default=False, description="whether the gRPC endpoint accepts TLS connections only")
    key: str | None = Field(description="admin key, or None where the admin endpoints are open")
    pid: int = Field(description="process id of `tidal serve`")
    pid_started: float = Field(
        description="start time of that process, which distinguishes it from a later one with the same id"
    )
    server_pid: int = Field(description="process id of tritonserver")
    version: str = Field(description="version of tritonserver")
    repository: Path
    log: Path | None = Field(description="file with the server's log; None where it goes to stderr")
    gateway: str | None = Field(default=None, description="URL of the gateway beside it; None for none")
    gateway_log: Path | None = Field(
        default=None, description="file with the gateway's log; None where it goes to stderr, or there is none"
    )
    server_restarts: int = Field(default=0, description="number of restarts of tritonserver after it ended by itself")
    last_end: str | None = Field(default=None, description="how tritonserver last ended by itself, and when")
    restarting: str | None = Field(
        default=None, description="how tritonserver ended, while it is being restarted; None while it runs"
    )
    status: str | None = Field(default=None, description="host:port of the status endpoint: GET /ready, GET /live")
    restarts: dict[str, int] = Field(default_factory=dict, description="number of restarts by the supervisor, by model")

    @property
    def http_port(self) -> int:
        """Port of the HTTP endpoint, which identifies a server on the command line."""
        return int(self.http.rpartition(":")[2])

    def control(self) -> ServerControl:
        """Admin API of the server; over HTTP alone where gRPC accepts TLS connections only."""
        return ServerControl(self.http, self.key, None if self.grpc_tls else self.grpc)

    def alive(self) -> bool:
        """Whether the `tidal serve` that wrote this still runs."""
        return tidal_client.local_servers.is_alive(self.pid, self.pid_started)


def state_folder() -> Path:
    """`$XDG_RUNTIME_DIR/tidal`, else a folder of this user in the temporary folder; only its owner can read it.

    Raises:
        InvalidArgument: The folder belongs to another user, or others can read it.
    """
    folder = tidal_client.local_servers.state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = tidal_client.local_servers.is_private(folder)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be used for server state: {error.strerror}") from None
    if not private:
        raise InvalidArgument(f"{folder} holds admin keys and must be a folder that only you can read: chmod 700 it")
    return folder


def state_file(http_port: int) -> Path:
    """Path of the state file of the server on this HTTP port."""
    return state_folder() / f"{http_port}.json"


def write_state(state: ServerState) -> Path:
    """Write or replace a server's state file, readable by its owner only."""
    path = state_file(state.http_port)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(state.model_dump_json(indent=1))
    temporary.replace(path)
    return path


def remove_state(http_port: int) -> None:
    """Remove the state file of this process; another server's on the same port stays."""
    path = state_file(http_port)
    try:
        state = ServerState.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return
    if state.pid == os.getpid():
        path.unlink(missing_ok=True)


def running_servers() -> list[ServerState]:
    """Running servers of this user, sorted by HTTP port. Files of ended processes are removed."""
    states = []
    for path in state_folder().glob("*.json"):
        try:
            state = ServerState.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except ValidationError:
            path.unlink(missing_ok=True)
            continue
        if state.alive():
            states.append(state)
        else:
            path.unlink(missing_ok=True)
    return sorted(states, key=lambda state: state.http_port)
