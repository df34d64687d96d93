"""Discovery of the server to control, also after it restarts on other ports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.errors import Unavailable
from tidal.server.connection import ServerConnection, choose_server
from tidal.server.control import ServerControl
from tidal.server.state import ServerState, running_servers


@dataclass(frozen=True, slots=True)
class ControlledServer:
    """A running `tidal serve` of this user."""

    control: ServerControl
    state: ServerState

    @property
    def identity(self) -> tuple[int, int]:
        """Process ids of `tidal serve` and its tritonserver; they change with a restart, which resets all counters."""
        return self.state.pid, self.state.server_pid


class ServerFinder:
    """Discovers the server at each call, because a restart changes its ports and its admin key.

    Args:
        which: Server that the user named, in the form that `choose_server` accepts; None: the only running one.
    """

    def __init__(self, which: str | None) -> None:
        self._which = which
        self._repository: Path | None = None

    def __call__(self) -> ControlledServer:
        """Return the named or only server; later also the only one that serves the same repository as before.

        Raises:
            Unavailable: No server runs, several run and none was named, or it is not a `tidal serve` of this user.
        """
        try:
            found = _controlled(choose_server(self._which))
        except Unavailable:
            same = [state for state in running_servers() if state.repository == self._repository]
            if len(same) != 1:
                raise
            found = _controlled(choose_server(str(same[0].http_port)))
        self._repository = found.state.repository
        return found


def _controlled(connection: ServerConnection) -> ControlledServer:
    if connection.state is None:
        raise Unavailable(
            f"the server at {connection.control.address} is not a `tidal serve` of this user and cannot be controlled"
        )
    return ControlledServer(connection.control, connection.state)
