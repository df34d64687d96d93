"""Which server is controlled: found as by every subcommand, and found again after a restart."""

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
        """Differs after a restart, when its counters begin at 0."""
        return self.state.pid, self.state.server_pid


class ServerFinder:
    """Finds the server anew at each call: after a restart it has other ports and another admin key.

    Args:
        which: what the user named, as `choose_server` takes it.
    """

    def __init__(self, which: str | None) -> None:
        self._which = which
        self._repository: Path | None = None

    def __call__(self) -> ControlledServer:
        """The server that was named, or the only one; once found, also the only one that serves the same repository.

        Raises:
            Unavailable: none runs, several run and none was named, or it is no `tidal serve` of this user.
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
            f"the server at {connection.control.address} is no tidal serve of this user, which allocations are for"
        )
    return ControlledServer(connection.control, connection.state)
