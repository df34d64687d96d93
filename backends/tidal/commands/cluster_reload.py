"""Reloading the models of a server after a fetch into its repository."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from tidal.errors import TidalError
from tidal.server import change
from tidal.server.connection import choose_server, explained
from tidal.server.state import running_servers


def reload_served(repository: Path, server: str | None, models: Iterable[str]) -> list[str]:
    """Reload those of some models that a server serves, one after another; what did not change is left as it is.

    Args:
        repository: Folder of the model repository.
        server: Server that the user named; None for the one that serves the repository, if one runs.
        models: Names of the models.

    Returns:
        Failures, one sentence each.
    """
    wanted = repository.resolve()
    if server is None:
        ports = [str(state.http_port) for state in running_servers() if state.repository == wanted]
        if not ports:
            return []
        server = ports[0]
    failures = []
    try:
        connection = choose_server(server)
        served = {row.name for row in connection.control.index() if row.state == "READY"}
    except TidalError as error:
        return [str(error)]
    for model in models:
        if model not in served:
            continue
        try:
            outcome = change.reload(connection.control, wanted, model)
        except TidalError as error:
            failures.append(str(explained(connection, error)))
        else:
            if " now" in outcome:
                typer.echo(outcome)
    return failures
