"""One run of `tidal serve`, from the checks to the clean-up."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidal.access_log.target import check_file, descriptor_target
from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument
from tidal.server.backend_directory import assemble
from tidal.server.endpoints import Endpoints, choose_endpoints, with_status
from tidal.server.extra_options import check_extra, grpc_tls
from tidal.server.gateway_process import GatewayLaunch, gateway_process
from tidal.server.guardian import Guardian
from tidal.server.installation import find_installation
from tidal.server.launch import Launch, check_key, check_path, select_models
from tidal.server.lifecycle import ServeOutcome, ServerLifecycle, names_of
from tidal.server.model_report import ModelReport
from tidal.server.process import KILL_AFTER_S
from tidal.server.protection import RequestLimits, protection
from tidal.server.ready_report import ReadyReport
from tidal.server.signals import handled_signals
from tidal.server.starting import clear_unfinished_changes, plan_start
from tidal.server.state import remove_state, running_servers, state_folder
from tidal.server.status import ServeStatus
from tidal.server.status_endpoint import status_endpoint
from tidal.server.traces import Traces, choose_traces

_log = logging.getLogger("tidal.serve")

# Free ports differ between runs, and each would leave a log.
_KEPT_LOGS = 10


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `tidal serve`.

    Attributes:
        repository: Folder of the model repository.
        models: Names of the models to serve; empty for all.
        host: IPv4 address or host name to listen on.
        http_port: Port of the HTTP endpoint; 0 for a free one.
        grpc_port: Port of the gRPC endpoint; 0 for a free one.
        metrics_port: Port of the Prometheus endpoint; 0 for a free one.
        status_host: Address of the status endpoint; None for `host`.
        status_port: Port of the status endpoint; 0 for a free one.
        exit_timeout_s: Time in seconds for requests in flight at shutdown.
        strict: Whether every model has to load.
        server_restarts: Largest number of restarts of tritonserver in a row.
        open_admin: Whether the admin endpoints need no key.
        verbose: Whether Triton's log goes to stderr.
        access_log: File of the request log, `-` for standard output; None for no log.
        extra: Further command-line words for tritonserver.
        limits: Largest sizes of requests.
        gateway_port: Port of a gateway, 0 for a free one; None for no gateway.
        gateway_config: YAML file with the gateway's settings; None for none.
        otlp_endpoint: URL of the receiver of spans; None for that of the environment.
        trace_ratio: Share of the requests without a trace context that are traced; None for that of the environment.
    """

    repository: Path
    models: tuple[str, ...]
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    status_host: str | None
    status_port: int
    exit_timeout_s: int
    strict: bool
    server_restarts: int
    open_admin: bool
    verbose: bool
    access_log: Path | None
    extra: tuple[str, ...]
    limits: RequestLimits
    gateway_port: int | None = None
    gateway_config: Path | None = None
    otlp_endpoint: str | None = None
    trace_ratio: float | None = None


def serve_until_ended(options: ServeOptions, ready: Callable[[ReadyReport], None]) -> ServeOutcome:
    """Serve until a signal arrives, or the server has ended by itself too often; then clean up.

    A server that ended by itself after it had served is restarted, with everything that is published then.

    Args:
        options: Options of the command.
        ready: Called once when it serves.

    Returns:
        How it ended.

    Raises:
        TidalError: It cannot serve; the message says what is missing or in use, or which models do not load and why.
    """
    check_extra(options.extra)
    installation = find_installation()
    graph = ModelGraph.read(options.repository)
    selection = select_models(graph, options.models)
    plan = plan_start(graph, names_of(selection), strict=options.strict)
    traces = choose_traces(options.otlp_endpoint, options.trace_ratio)
    access_log = None if options.access_log is None else _access_log(options.access_log)
    key = None if options.open_admin else check_key(os.environ.get("TIDAL_ADMIN_KEY"))
    endpoints = choose_endpoints(options.host, options.http_port, options.grpc_port, options.metrics_port)
    endpoints = with_status(endpoints, options.status_host, options.status_port)
    # Only once the ports are known to be free: a start that fails must not change files that another server uses.
    clear_unfinished_changes(options.repository, plan.models)
    state_folder()
    prefix = f"tidal_{os.getpid()}_{os.urandom(4).hex()}_"
    check_path(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix="tidal-serve-"))
    guardian = Guardian(prefix, options.exit_timeout_s + KILL_AFTER_S, folder)
    try:
        launch = Launch(
            installation=installation,
            repository=options.repository.resolve(),
            backend_directory=assemble(folder / "backends", installation),
            models=plan.by_server,
            endpoints=endpoints,
            shm_prefix=prefix,
            key=key,
            exit_timeout_s=options.exit_timeout_s,
            extra=options.extra,
            access_log=access_log,
            protection=protection(installation, options.limits),
            traces=traces,
        )
        log = None if options.verbose else _log_file(endpoints.http)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        _warn(options, launch)
        status, models = ServeStatus(), ModelReport(launch.repository, endpoints.metrics)
        with (
            handled_signals() as signals,
            status_endpoint(endpoints.status_host, endpoints.status, status, models),
            gateway_process(_gateway(options, endpoints, traces), signals.at_once) as gateway,
        ):
            lifecycle = ServerLifecycle(launch, options.models, log, signals, status, options.strict, gateway)
            ended = lifecycle.first(plan, selection, ready)
            return lifecycle.restart(options.server_restarts) if ended is ServeOutcome.BY_ITSELF else ended
    finally:
        remove_state(endpoints.http)
        shutil.rmtree(folder, ignore_errors=True)
        guardian.dismiss()


def _gateway(options: ServeOptions, endpoints: Endpoints, traces: Traces | None) -> GatewayLaunch | None:
    if options.gateway_port is None:
        if options.gateway_config is not None:
            raise InvalidArgument("--gateway-config requires --gateway-port")
        return None
    if grpc_tls(options.extra):
        raise InvalidArgument("--gateway-port: the gateway does not connect to gRPC with TLS; leave --grpc-use-ssl out")
    server = f"{_local(endpoints.address(endpoints.grpc))},status={_local(endpoints.status_address)}"
    log = None if options.verbose else _log_file(endpoints.http, "-gateway")
    traced = {} if traces is None else traces.gateway
    return GatewayLaunch(options.gateway_port, options.gateway_config, server, log, options.exit_timeout_s, traced)


def _local(address: str) -> str:
    return address.replace("0.0.0.0:", "127.0.0.1:")


def _access_log(path: Path) -> str:
    """The request log's target; the models' processes inherit a copy of standard output."""
    return descriptor_target(os.dup(sys.stdout.fileno())) if path == Path("-") else str(check_file(path))


def _warn(options: ServeOptions, launch: Launch) -> None:
    """Log what of this server is open or unprotected."""
    if launch.protection.lacking:
        _log.warning("%s", launch.protection.lacking)
    if options.open_admin and not options.host.startswith(("127.", "localhost")):
        _log.warning(
            "--open-admin with --host %s: everybody who can connect to port %d or %d can load and unload models, use "
            "shared memory and change logging: omit --open-admin, or listen on 127.0.0.1",
            options.host,
            launch.endpoints.http,
            launch.endpoints.grpc,
        )


def _log_file(http_port: int, suffix: str = "") -> Path:
    """`$XDG_STATE_HOME/tidal/<http port>.log`, kept after the end; next to the state where home is not writable."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tidal"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        folder = state_folder()
    in_use = {log for state in running_servers() for log in (state.log, state.gateway_log)}
    ended: list[tuple[float, Path]] = []
    for path in folder.glob("*.log"):
        with suppress(OSError):  # another server that starts removes old logs, too
            if path not in in_use:
                ended.append((path.stat().st_mtime, path))
    for _, old in sorted(ended)[:-_KEPT_LOGS]:
        with suppress(OSError):
            old.unlink()
    return folder / f"{http_port}{suffix}.log"
