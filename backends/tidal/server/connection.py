"""Choosing the running server that a command connects to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tidal.errors import TidalError, Unavailable
from tidal.server.control import ServerControl
from tidal.server.state import ServerState, running_servers

# Longest time in which `tidal serve` detects that tritonserver has ended.
_NOTICED_S = 1.5


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """A server that a command connects to.

    Attributes:
        control: Admin API of the server.
        state: State file of the `tidal serve` of this user that runs it; None for any other server.
    """

    control: ServerControl
    state: ServerState | None


def restarting(state: ServerState) -> str:
    """The error message for a server whose tritonserver is being restarted."""
    return (
        f"tritonserver on {state.http} is restarting: {state.restarting}. Try again in some seconds; "
        f"http://{state.status}/ready reports when it is ready"
    )


def explained(connection: ServerConnection, error: TidalError) -> TidalError:
    """The error to report for a command that failed: that tritonserver is restarting, where that is the cause.

    It may have ended during the command; `tidal serve` detects that within a moment.

    Args:
        connection: Server of the command.
        error: Error of the command.
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
    """Connect to the server that the user names, or to the only one that runs.

    Args:
        which: HTTP port of a server of this user, or `host:port` of any server; None for the only one.

    Raises:
        Unavailable: No server runs, several run and none was named, or the named one is restarting or does not answer.
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
