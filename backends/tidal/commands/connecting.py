"""Options of commands that name a server and a repository, and the connection to that server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidal.commands.output import one_sentence
from tidal.server.connection import ServerConnection, choose_server
from tidal.server.state import running_servers

NO_SERVER = 3
DEFAULT_REPOSITORY = Path("model_repository")

Server = Annotated[
    str | None,
    typer.Option("--server", "-s", metavar="[HOST:]PORT", help="HTTP port of the server, or its host and port."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def server_of(repository: Path | None, server: str | None) -> ServerConnection | None:
    """Connect to the server of a command.

    Args:
        repository: Folder of the model repository that the user named; None for none.
        server: Server that the user named; None for none.

    Returns:
        The named server; else the only one that runs and serves the repository; None where there is none.
    """
    with one_sentence(NO_SERVER):
        if server is not None:
            return choose_server(server)
        wanted = repository.resolve() if repository is not None else None
        fitting = [state for state in running_servers() if wanted is None or state.repository == wanted]
        if not fitting:
            return None
        return choose_server(str(fitting[0].http_port) if wanted is not None else None)
