"""`tidal serve`: a real tritonserver with Tidal's backends, supervised, and nothing left behind at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidal.catalog.graph import ModelGraph
from tidal.commands.output import one_sentence, print_json, print_table
from tidal.server import backend_directory
from tidal.server.installation import find_installation
from tidal.server.launch import check_path, select_models, stock_command
from tidal.server.lifecycle import ServeOutcome
from tidal.server.protection import MAX_INPUT_SIZE, MAX_MESSAGE_SIZE, RequestLimits, protection, with_guard_in
from tidal.server.ready_report import ReadyReport
from tidal.server.session import ServeOptions, serve_until_ended

STATUS_PORT = 8004
# Of the state: secret, or not yet so.
_NOT_REPORTED = {"key", "pid_started", "restarts", "server_restarts", "restarting", "last_end"}
_EXIT_CODES = {
    ServeOutcome.CLEANLY: 0,
    ServeOutcome.NOT_STARTED: 1,
    ServeOutcome.BY_ITSELF: 3,
    ServeOutcome.CUT_SHORT: 4,
}


def serve(
    repository: Annotated[Path, typer.Argument(help="Model repository: one folder a model.", show_default=True)] = Path(
        "model_repository"
    ),
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- TRITON OPTIONS]", help="Passed to tritonserver as they are.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Serve only this model, with what it needs. Repeat for several.", metavar="NAME"),
    ] = None,
    host: Annotated[str, typer.Option(help="IPv4 address to listen on, 0.0.0.0 for every network.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port, 0 for a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port, 0 for a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Prometheus port, 0 for a free one.")] = 8002,
    status_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the status endpoint, GET /ready and GET /live; 0 for a free one.",
            show_default="8004, or a free one with --http-port 0",
        ),
    ] = None,
    status_host: Annotated[
        str | None, typer.Option(help="IPv4 address of the status endpoint.", show_default="as --host")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Serve nothing unless every model loads, instead of the models that do."),
    ] = False,
    exit_timeout: Annotated[
        int, typer.Option(min=0, help="Seconds that requests in flight get at the end. 5 s later the server is killed.")
    ] = 30,
    server_restarts: Annotated[
        int,
        typer.Option(
            metavar="TIMES",
            min=0,
            help="How often in a row to start tritonserver again where it ended without being asked to.",
        ),
    ] = 5,
    http_max_input_size: Annotated[
        int, typer.Option(metavar="BYTES", min=1 << 20, max=1 << 30, help="Most bytes of an HTTP request body.")
    ] = MAX_INPUT_SIZE,
    grpc_max_message_size: Annotated[
        int,
        typer.Option(
            metavar="BYTES", min=1 << 20, max=(1 << 31) - 1, help="Most bytes of a gRPC message; Triton before 26.07."
        ),
    ] = MAX_MESSAGE_SIZE,
    open_admin: Annotated[
        bool, typer.Option("--open-admin", help="Let anybody load and unload models, without the admin key.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Triton's log on stderr instead of a file.")] = False,
    access_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-",
            envvar="TIDAL_ACCESS_LOG",
            help="Write one line of JSON per request to FILE, or to standard output.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON instead of the table.")
    ] = False,
    assemble: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Start nothing: write a stand-alone backend directory to DIR and print the command that serves the "
            "repository with tritonserver alone.",
        ),
    ] = None,
) -> None:
    """Serve a model repository with a real tritonserver.

    Takes the tritonserver on PATH (NVIDIA's image), else the one of the nvidia-pytriton package, gives it Tidal's
    backends, loads every model that has a published version, prints one table when it serves and stays until SIGINT
    (Ctrl-C) or SIGTERM. On a signal, requests in flight are answered; a second signal ends at once.

    A model that does not load is reported with the reason and the models that depend on it, and the others are served.
    Load it later with `tidal models load`. With `--strict` the start fails instead.

    A model whose Python process died is restarted, and tritonserver itself, on the same ports, where it ended without
    being asked to: at once, then after 1, 2, 4 and 8 s, counted anew once all models have served for two minutes.

    Probe `GET /ready` on the status port: 200 while every wanted model answers in some version, else 503; the JSON
    document names each model with its reason. A model is wanted from the moment it serves until somebody unloads it.
    `GET /live` is 503 where tritonserver hangs.

    Model control, shared memory, logging and trace need the admin key: $TIDAL_ADMIN_KEY, else a new one, kept in
    $XDG_RUNTIME_DIR/tidal/(HTTP port).json (readable by you only), where the other tidal commands find it. HTTP
    clients send it as header `tidal-admin-key`, gRPC clients as metadata
    `triton-grpc-protocol-tidal-admin-key`. Whoever can list this machine's processes sees it in tritonserver's
    arguments.

    Examples:

    ```
    tidal serve
    tidal serve /srv/models --model intents --host 0.0.0.0
    tidal serve --http-port 0 --grpc-port 0 --metrics-port 0 --json
    tidal serve --access-log /var/log/tidal/requests.jsonl
    tidal serve -- --log-verbose=1 --model-load-thread-count=8
    tidal serve /srv/models --assemble /srv/backends
    ```

    Exit codes:

    - **0** ended by a signal, every request answered
    - **1** not started: a port is taken, the repository is empty, no model loads, with `--strict` one does not; or a
      signal came before it served
    - **2** wrong usage
    - **3** tritonserver ended without being asked to, as often as `--server-restarts` allows and once more
    - **4** requests may be unanswered: tritonserver gave up on them at the exit timeout, or was killed because it did
      not end in time or a second signal came
    """
    extra = tuple(arguments or ())
    if str(repository).startswith("-"):  # `tidal serve -- OPTIONS` without a repository
        repository, extra = Path("model_repository"), (str(repository), *extra)
    limits = RequestLimits(http_max_input_size, grpc_max_message_size)
    with one_sentence():
        if assemble is not None:
            _assemble(repository, assemble, model or [], limits)
            return
        options = ServeOptions(
            repository=repository,
            models=tuple(model or ()),
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            status_host=status_host,
            status_port=status_port if status_port is not None else (STATUS_PORT if http_port else 0),
            exit_timeout_s=exit_timeout,
            strict=strict,
            server_restarts=server_restarts,
            open_admin=open_admin,
            verbose=verbose,
            access_log=access_log,
            extra=extra,
            limits=limits,
        )
        ended = serve_until_ended(options, lambda report: _print_ready(report, as_json))
    raise typer.Exit(_EXIT_CODES[ended])


def _assemble(repository: Path, target: Path, names: list[str], limits: RequestLimits) -> None:
    installation = find_installation()
    served = select_models(ModelGraph.read(repository), names).served
    check_path(target)
    backend_directory.assemble(target, installation)
    protected = with_guard_in(target, protection(installation, limits), limits)
    if protected.lacking:
        typer.echo(f"warning: {protected.lacking}", err=True)
    names = [entry.name for entry in served]
    typer.echo(stock_command(installation, repository, target, names, protected))


def _print_ready(report: ReadyReport, as_json: bool) -> None:
    """One table, or one line of JSON (which has no admin key)."""
    if as_json:
        names = ("name", "version", "backend", "state")
        print_json(
            {
                **report.state.model_dump(mode="json", exclude=_NOT_REPORTED),
                "source": report.source,
                "models": [dict(zip(names, model, strict=True)) for model in report.models],
                "unpublished": [{"name": name, "command": command} for name, command in report.unpublished],
                "incomplete": [{"name": name, "reason": reason} for name, reason in report.incomplete],
                "failed": [{"name": name, "reason": reason} for name, reason in report.failed],
            }
        )
        return
    rows = [(name, str(version), backend, state) for name, version, backend, state in report.models]
    rows += [(name, "-", "-", f"not published: {command}") for name, command in report.unpublished]
    rows += [(name, "-", "ensemble", f"not served: {reason}") for name, reason in report.incomplete]
    rows += [(name, "-", "-", f"does not load: {reason}") for name, reason in report.failed]
    state = report.state
    print_table(
        ("MODEL", "VERSION", "BACKEND", "STATE"),
        rows,
        title=f"Triton {state.version} ({report.source}) serves {state.repository}",
        notes=f"HTTP     http://{state.http}\ngRPC     {state.grpc}\nmetrics  http://{state.metrics}/metrics\n"
        f"status   http://{state.status}/ready\n"
        f"admin    {'open to anybody' if state.key is None else 'restricted by key'}\n"
        f"log      {state.log or 'stderr'}",
    )
