"""`tidal models`: list, load, unload and reload models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.commands.allocate import allocate_instances
from tidal.commands.connecting import DEFAULT_REPOSITORY, NO_SERVER, AsJson, Server, server_of
from tidal.commands.output import fail, one_sentence, print_json, print_table
from tidal.errors import InvalidArgument, TidalError
from tidal.server import change
from tidal.server.backend_directory import python_backends
from tidal.server.connection import ServerConnection, choose_server, explained
from tidal.server.control import ServerControl
from tidal.server.model_facts import model_facts
from tidal.server.reasons import sentence
from tidal.server.state import ServerState
from tidal.server.status_endpoint import read_readiness
from tidal.server.stubs import live_stubs, wanted_instances

models = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    help="""List, load, unload and reload the models of a running server, and allocate instances to them.

The server is the one that you started with `tidal serve`; with several, name one by `--server PORT`. Any other
is `--server HOST:PORT`, with its admin key in $TIDAL_ADMIN_KEY.

```
tidal models list                 published and served versions, and their builds
tidal models reload intents       serve a version that was just published
tidal models allocate intents     instances of each runtime of a partitioned model
tidal models status --json        instances, restarts and readiness, for a pipeline
```

Exit codes:

- **0** done
- **1** a model was not found or does not load; the version that served before keeps serving
- **2** wrong usage
- **3** no server answers, tritonserver is restarting, or several run and none was named
""",
)

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of models.")]


@models.command("list")
def list_models(
    repository: Annotated[
        Path | None, typer.Argument(help="Model repository; else the running server's, else ./model_repository.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List models: published versions, versions that serve, state, backend, instances, engine and build time.

    Instances are those of config.pbtxt or, for a runtime of a partitioned model, of the allocation.

    Without a server it lists the repository alone.

    Exit codes: **0** listed, **1** no such repository, **3** the named server does not answer.
    """
    connection = server_of(repository, server)
    if connection is not None and connection.state is not None and repository is None:
        repository = connection.state.repository
    elif connection is None and repository is None:
        repository = DEFAULT_REPOSITORY
    with one_sentence():
        if repository is not None and not repository.is_dir():
            raise InvalidArgument(f"model repository '{repository}' is not a folder")
        facts = model_facts(repository, connection.control.index() if connection is not None else None)
    if as_json:
        print_json([asdict(fact) for fact in facts])
        return
    columns = (
        "MODEL",
        "PUBLISHED",
        "SERVES",
        "STATE",
        "BACKEND",
        "INSTANCES",
        "ENGINE",
        "PRECISION",
        "MAX LENGTH",
        "BUILT",
    )
    print_table(columns, [[_cell(value) for value in asdict(fact).values()] for fact in facts])


@models.command()
def status(server: Server = None, as_json: AsJson = False) -> None:
    """Show what a server serves: versions, states, live Python instances, restarts, reasons, and readiness.

    RESTARTS is the number of restarts of a model's processes, because one of them or tritonserver ended.

    Exit codes: **0** shown, **3** no server answers, or tritonserver is restarting.
    """
    with one_sentence(NO_SERVER):
        connection = choose_server(server)
        state = connection.state
        readiness = read_readiness(state.status) if state is not None and state.status else None
        try:
            rows = _status_rows(connection, readiness)
        except TidalError as error:
            raise explained(connection, error) from None
    if as_json:
        described = state.model_dump(mode="json", exclude={"key", "pid_started"}) if state is not None else None
        address = connection.control.address
        print_json({"address": address, "server": described, "readiness": readiness, "models": rows})
        return
    columns = ("MODEL", "VERSION", "STATE", "INSTANCES", "RESTARTS", "REASON")
    table = [[_cell(value) for value in row.values()] for row in rows]
    print_table(columns, table, notes="\n".join(_notes(state, readiness)))


@models.command()
def reload(names: Names, server: Server = None) -> None:
    """Serve versions that were published since, and wait until they serve; no request fails meanwhile.

    An unchanged model is not loaded again. A partitioned model is reloaded after its runtimes, a cascade after its
    levels, and an ensemble after its steps.

    Exit codes: **0** all serve, **1** one is not served or does not load, **3** no server answers.
    """
    _each(names, server, change.reload)


@models.command()
def load(names: Names, server: Server = None) -> None:
    """Load models with all models that they require, and wait until they serve.

    Exit codes: **0** all serve, **1** one does not load, **3** no server answers.
    """
    _each(names, server, change.load)


@models.command()
def unload(names: Names, server: Server = None) -> None:
    """Unload models; requests in flight are still answered, and the supervisor does not restart them.

    The runtimes of a partitioned model and the levels built for a cascade are unloaded after it, unless another model
    that serves requires them.

    Exit codes: **0** done, **1** one is not served, **3** no server answers.
    """
    _each(names, server, change.unload)


models.command("allocate")(allocate_instances)


def _each(names: list[str], server: str | None, act: Callable[[ServerControl, Path | None, str], str]) -> None:
    """Apply an operation to every model, also after one failed."""
    with one_sentence(NO_SERVER):
        connection = choose_server(server)
    repository = connection.state.repository if connection.state is not None else None
    failures = []
    for name in names:
        try:
            typer.echo(act(connection.control, repository, name))
        except TidalError as error:
            failures.append(str(explained(connection, error)))
    if failures:
        fail("; ".join(failures))


def _notes(state: ServerState | None, readiness: dict[str, Any] | None) -> list[str]:
    """Lines below the table: readiness, and restarts of tritonserver."""
    lines = []
    if readiness is not None:
        lines.append("ready" if readiness["ready"] else f"not ready: {readiness['reason']}")
    if state is not None and state.server_restarts:
        times = "once" if state.server_restarts == 1 else f"{state.server_restarts} times"
        lines.append(f"tritonserver was restarted {times}; it last ended: {state.last_end or 'unknown'}")
    return lines


def _status_rows(connection: ServerConnection, readiness: dict[str, Any] | None) -> list[dict[str, str | int | None]]:
    known = readiness["models"] if readiness is not None else {}
    state, control = connection.state, connection.control
    stubs = live_stubs(state.server_pid) if state is not None else None
    rows: list[dict[str, str | int | None]] = []
    for row in control.index():
        instances = None
        if row.state == "READY":
            config = control.config(row.name, row.version)
            wanted = wanted_instances(config)
            instances = str(wanted) if wanted else None  # an ensemble has none
            if stubs is not None and config.get("backend") in python_backends():
                live = sum((s.model, s.version) == (row.name, row.version) and not s.completes_config for s in stubs)
                instances = f"{live} of {wanted}"
        reason = sentence(row.reason) if row.reason and row.state != "READY" else None
        readiness_of = known.get(row.name, {})
        if not readiness_of.get("ready", True) and readiness_of.get("wanted"):
            reason = readiness_of.get("reason") or reason
        rows.append(
            {
                "model": row.name,
                "version": row.version,
                "state": row.state,
                "instances": instances,
                "restarts": state.restarts.get(row.name, 0) + state.server_restarts if state is not None else None,
                "reason": reason,
            }
        )
    return rows


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
