"""The processes of the gateway: one that supervises, and workers that share its port."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import uvicorn
from uvicorn.supervisors import Multiprocess

from tidal.errors import InvalidArgument, Unavailable
from tidal_gateway.edge.access_log import log_target
from tidal_gateway.edge.protocol import LimitedProtocol, Shared, limits_of
from tidal_gateway.edge.tls import Certificates
from tidal_gateway.keys.rates import create_table
from tidal_gateway.keys.store import read_keys
from tidal_gateway.settings import GatewaySettings
from tidal_gateway.upstream.lanes import create_lane_table

_LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(process)d %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "tidal_gateway": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        # What clients send wrong is no event of the gateway: the access log has it.
        "uvicorn.error": {"level": "ERROR"},
        "python_multipart": {"level": "CRITICAL"},
    },
}
# uvicorn's 5 s kill a worker that a machine under load does not let answer.
_HEALTH_CHECK_S: Final = 60
# Read by prometheus_client when it is imported.
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker process needs to start; calling it returns the application.

    Attributes:
        settings: Settings of the gateway.
        log_target: Target of the access log; None for none.
        rate_table: File with the rates of the keys; None without keys.
        lane_table: File with the outstanding requests of all workers; None for a single one.
    """

    settings: GatewaySettings
    log_target: str | None
    rate_table: Path | None
    lane_table: Path | None

    def __call__(self) -> Any:
        """Return the ASGI application."""
        from tidal_gateway.app import create_app

        app = create_app(
            self.settings, log_target=self.log_target, rate_table=self.rate_table, lane_table=self.lane_table
        )
        LimitedProtocol.shared = Shared(limits_of(self.settings), app.refused, app.record)
        return app

    def tls(self, config: uvicorn.Config, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """Return the TLS context, and read its files again when they change."""
        certificates = Certificates(self.settings)
        threading.Thread(target=certificates.run, name="certificates", daemon=True).start()
        return certificates.context


class Workers(Multiprocess):
    """The worker processes, and this one, which supervises them: replaces those that end, and removes their gauges."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._running: set[int] = set()

    def init_processes(self) -> None:
        """Start the workers."""
        super().init_processes()
        self._close_their_ends()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended. Their counters are kept; their gauges are removed."""
        from prometheus_client.multiprocess import mark_process_dead

        super().keep_subprocess_alive()
        self._close_their_ends()
        running = {each.pid for each in self.processes if each.pid is not None}
        for ended in self._running - running:
            mark_process_dead(ended)  # type: ignore[no-untyped-call]
        self._running = running

    def _close_their_ends(self) -> None:
        """Close the parent's copy of each worker's end of the health-check pipe.

        Otherwise the pipe stays open when it is killed during a check, which then waits for its whole time.
        """
        for each in self.processes:
            each.child_conn.close()

    def terminate_all(self) -> None:
        """Signal the workers to exit and close the port, because nothing accepts connections while they drain."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


@dataclass(frozen=True, slots=True)
class Started:
    """Addresses of a gateway that accepts connections, as ``host:port``."""

    address: str
    metrics: str


def run_workers(settings: GatewaySettings, started: Callable[[Started], None]) -> None:
    """Run the gateway until a signal ends it.

    Args:
        settings: Settings with at least one server.
        started: Called once the port is open.

    Raises:
        InvalidArgument: A file that the settings name is not accepted.
        Unavailable: A port is in use.
    """
    with TemporaryDirectory(prefix="tidal-gateway-") as name:
        folder = Path(name)
        target = None if settings.access_log is None else log_target(settings.access_log)
        table = None
        if settings.keys is not None:
            read_keys(settings.keys)
            table = folder / "rates"
            create_table(table)
        lanes = None
        if settings.workers > 1:
            lanes = folder / "lanes"
            create_lane_table(lanes)
        if settings.tls_cert is not None:
            Certificates(settings)
        if settings.otlp_endpoint is not None and find_spec("opentelemetry.exporter.otlp.proto.http") is None:
            raise InvalidArgument("otlp_endpoint requires packages of OpenTelemetry: pip install 'tidal[tracing]'")
        (folder / "metrics").mkdir()
        os.environ[_METRICS_FOLDER] = str(folder / "metrics")
        listener = _listener(settings.host, settings.port)
        metrics_address = _serve_metrics(settings)
        worker = WorkerStart(settings, target, table, lanes)
        config = worker_config(worker)
        host, port = listener.getsockname()[:2]
        started(Started(f"{host}:{port}", metrics_address))
        Workers(config, sockets=[listener]).run()


def worker_config(worker: WorkerStart) -> uvicorn.Config:
    """Return uvicorn's configuration of the workers."""
    settings = worker.settings
    return uvicorn.Config(
        worker,
        factory=True,
        workers=settings.workers,
        http=LimitedProtocol,
        loop="uvloop",
        ws="none",
        log_config=_LOG_CONFIG,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.exit_timeout_s,
        timeout_worker_healthcheck=_HEALTH_CHECK_S,
        ssl_context_factory=worker.tls if settings.tls_cert is not None else None,
    )


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(f"port {port} of {host} cannot be opened: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener


def _serve_metrics(settings: GatewaySettings) -> str:
    """Serve the metrics of all workers from this process; return the address."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    try:
        server, _ = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        message = f"metrics port {settings.metrics_port} cannot be opened: {error.strerror}"
        raise Unavailable(message) from None
    return f"{settings.metrics_host}:{server.server_port}"
