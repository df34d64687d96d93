"""`tidal serve`: run a supervised tritonserver with Tidal's backends."""

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
# Fields of the state that are secret, or not yet meaningful.
_NOT_REPORTED = {"key", "pid_started", "restarts", "server_restarts", "restarting", "last_end"}
_EXIT_CODES = {
    ServeOutcome.CLEANLY: 0,
    ServeOutcome.NOT_STARTED: 1,
    ServeOutcome.BY_ITSELF: 3,
    ServeOutcome.CUT_SHORT: 4,
}


def serve(
    repository: Annotated[
        Path, typer.Argument(help="Model repository: one folder per model.", show_default=True)
    ] = Path("model_repository"),
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- TRITON OPTIONS]", help="Options passed to tritonserver unchanged."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Serve only this model, with the models that it requires. Repeatable.", metavar="NAME"),
    ] = None,
    host: Annotated[str, typer.Option(help="IPv4 address to listen on, 0.0.0.0 for all networks.")] = "127.0.0.1",
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
        typer.Option("--strict", help="Fail unless every model loads, instead of serving those that load."),
    ] = False,
    exit_timeout: Annotated[
        int, typer.Option(min=0, help="Seconds for requests in flight at shutdown; 5 s later the server is killed.")
    ] = 30,
    server_restarts: Annotated[
        int,
        typer.Option(
            metavar="TIMES",
            min=0,
            help="Maximum number of restarts in a row of a tritonserver that ended by itself.",
        ),
    ] = 5,
    http_max_input_size: Annotated[
        int, typer.Option(metavar="BYTES", min=1 << 20, max=1 << 30, help="Largest HTTP request body in bytes.")
    ] = MAX_INPUT_SIZE,
    grpc_max_message_size: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=1 << 20,
            max=(1 << 31) - 1,
            help="Largest gRPC message in bytes; for Triton before 26.07.",
        ),
    ] = MAX_MESSAGE_SIZE,
    open_admin: Annotated[
        bool, typer.Option("--open-admin", help="Allow model control and other admin endpoints without the admin key.")
    ] = False,
    gateway_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Run a gateway on this port, see `tidal gateway`; 0 for a free one.",
            show_default=False,
        ),
    ] = None,
    gateway_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file of `tidal gateway --config` for that gateway."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Write Triton's log to stderr instead of a file.")
    ] = False,
    access_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-",
            envvar="TIDAL_ACCESS_LOG",
            help="Write one line of JSON per request to FILE, or - for standard output.",
        ),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Trace requests: send spans to this OTLP receiver over HTTP, such as http://127.0.0.1:4318.",
            show_default="$OTEL_EXPORTER_OTLP_ENDPOINT, else none",
        ),
    ] = None,
    trace_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            min=0,
            max=1,
            help="Share of the requests without a traceparent that are traced.",
            show_default="$OTEL_TRACES_SAMPLER, else 1",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON instead of the table.")
    ] = False,
    assemble: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a stand-alone backend directory to DIR, print the command that serves the repository with "
            "tritonserver alone, and exit.",
        ),
    ] = None,
) -> None:
    """Serve a model repository with tritonserver.

    Uses the tritonserver on PATH (NVIDIA's image), else the one of the nvidia-pytriton package, with Tidal's backends.
    Loads every model that has a published version, prints a table when it serves, and runs until SIGINT (Ctrl-C) or
    SIGTERM. On a signal it answers requests in flight and exits; a second signal ends it at once.

    A model that does not load is reported with the reason and the models that depend on it, and the others are served.
    Load it later with `tidal models load`. With `--strict` the start fails instead.

    A model whose Python process crashed is restarted. So is tritonserver, on the same ports, where it ended by itself:
    at once, then after 1, 2, 4 and 8 s; the count starts again once all models have served for two minutes.

    Probe `GET /ready` on the status port: 200 while every wanted model answers in some version, else 503; the JSON
    document names each model with its reason. A model is wanted from the moment it serves until it is unloaded on
    purpose. `GET /live` is 503 where tritonserver hangs.

    With `--gateway-port` a gateway runs beside tritonserver, with the settings of `--gateway-config` and of the
    variables TIDAL_GATEWAY_*; it listens on 127.0.0.1 unless they say otherwise. It starts first, is restarted where it
    ends by itself, and on a signal answers its requests before tritonserver stops.

    Model control, shared memory, logging and trace require the admin key: $TIDAL_ADMIN_KEY, else a new one. It is kept
    in $XDG_RUNTIME_DIR/tidal/(HTTP port).json (readable by you only), where the other tidal commands read it. HTTP
    clients send it as header `tidal-admin-key`, gRPC clients as metadata `triton-grpc-protocol-tidal-admin-key`. Every
    user who can list this machine's processes sees it in the arguments of tritonserver.

    Examples:

    ```
    tidal serve
    tidal serve /srv/models --model intents --host 0.0.0.0
    tidal serve --http-port 0 --grpc-port 0 --metrics-port 0 --json
    tidal serve --gateway-port 9000
    tidal serve --access-log /var/log/tidal/requests.jsonl
    tidal serve --otlp-endpoint http://127.0.0.1:4318
    tidal serve -- --log-verbose=1 --model-load-thread-count=8
    tidal serve /srv/models --assemble /srv/backends
    ```

    Exit codes:

    - **0** stopped by a signal, every request answered
    - **1** not started: a port is in use, the repository is empty, no model loads, with `--strict` one does not; or a
      signal arrived before it served
    - **2** wrong usage
    - **3** tritonserver ended by itself more often in a row than `--server-restarts` allows
    - **4** requests may be unanswered: tritonserver gave up on them at the exit timeout, or was killed because it did
      not end in time or a second signal arrived
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
            gateway_port=gateway_port,
            gateway_config=gateway_config,
            otlp_endpoint=otlp_endpoint,
            trace_ratio=trace_ratio,
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
    """Print a table, or one line of JSON without the admin key."""
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
        f"admin    {'open to everybody' if state.key is None else 'restricted by key'}\n"
        f"log      {state.log or 'stderr'}"
        + (f"\ngateway  {state.gateway}\nits log  {state.gateway_log or 'stderr'}" if state.gateway else ""),
    )
