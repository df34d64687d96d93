"""How `tidal models` commands are told which server and which repository they are about."""

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
    """The named server; else the only one that runs, where it serves the named repository; else none."""
    with one_sentence(NO_SERVER):
        if server is not None:
            return choose_server(server)
        wanted = repository.resolve() if repository is not None else None
        fitting = [state for state in running_servers() if wanted is None or state.repository == wanted]
        if not fitting:
            return None
        return choose_server(str(fitting[0].http_port) if wanted is not None else None)
