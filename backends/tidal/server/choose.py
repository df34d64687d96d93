"""Which running server a command talks to."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidal.errors import Unavailable
from tidal.server.control import ServerControl
from tidal.server.state import ServerState, running_servers


@dataclass(frozen=True, slots=True)
class Connection:
    """The admin side of a server, with its state where `tidal serve` of this user runs it."""

    control: ServerControl
    state: ServerState | None


def choose_server(which: str | None) -> Connection:
    """The server that the user names, or the only one that runs.

    Args:
        which: HTTP port of a server of this user, `host:port` of any server, or None.

    Raises:
        Unavailable: none runs, several run and none was named, or the named one does not answer.
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
    return Connection(control, None)


def _connect(state: ServerState) -> Connection:
    return Connection(state.control(), state)
