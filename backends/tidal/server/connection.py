"""Which running server a command talks to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tidal.errors import TidalError, Unavailable
from tidal.server.control import ServerControl
from tidal.server.state import ServerState, running_servers

# `tidal serve` notices within this time that tritonserver has ended.
_NOTICED_S = 1.5


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """The admin side of a server, with its state where `tidal serve` of this user runs it."""

    control: ServerControl
    state: ServerState | None


def restarting(state: ServerState) -> str:
    """What to say of a server whose tritonserver is being started again."""
    return (
        f"tritonserver on {state.http} is restarting: {state.restarting}. Try again in some seconds; "
        f"http://{state.status}/ready says when it is ready"
    )


def explained(connection: ServerConnection, error: TidalError) -> TidalError:
    """An error of a command, or that tritonserver is restarting where that is the reason.

    It may have ended while the command talked to it, and `tidal serve` notices within a moment.
    """
    state = connection.state
    if state is None or not isinstance(error, Unavailable):
        return error
    end = time.monotonic() + _NOTICED_S
    while time.monotonic() < end:
        for latest in running_servers():
            if latest.http == state.http and (latest.restarting or latest.server_pid != state.server_pid):
                return Unavailable(restarting(latest) if latest.restarting else f"tritonserver has restarted: {error}")
        time.sleep(0.1)
    return error


def choose_server(which: str | None) -> ServerConnection:
    """The server that the user names, or the only one that runs.

    Args:
        which: HTTP port of a server of this user, `host:port` of any server, or None.

    Raises:
        Unavailable: none runs, several run and none was named, or the named one is restarting or does not answer.
    """
    servers = running_servers()
    if which is None:
        if not servers:
            raise Unavailable("no server is running: start one with tidal serve, or name one with --server HOST:PORT")
        if len(servers) > 1:
            ports = ", ".join(str(state.http_port) for state in servers)
            raise Unavailable(f"several servers are running: choose one with --server, one of {ports}")
        return _connect(servers[0])
    for state in servers:
        if which in (str(state.http_port), state.http, state.http.replace("127.0.0.1", "localhost")):
            return _connect(state)
    address = which if ":" in which else f"127.0.0.1:{which}"
    control = ServerControl(address, os.environ.get("TIDAL_ADMIN_KEY"))
    control.version()  # raises with the reason
    return ServerConnection(control, None)


def _connect(state: ServerState) -> ServerConnection:
    if state.restarting:
        raise Unavailable(restarting(state))
    return ServerConnection(state.control(), state)
