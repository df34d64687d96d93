"""A real tritonserver for the length of a block, started directly, without `tidal serve` around it."""

from __future__ import annotations

import itertools
import os
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tidal.server.backend_directory import assemble
from tidal.server.cleanup import SHARED_MEMORY, clean_up, processes_of
from tidal.server.control import ServerControl
from tidal.server.endpoints import choose_endpoints
from tidal.server.installation import find_installation
from tidal.server.launch import Launch
from tidal.server.process import ServerProcess
from tidal.server.protection import protection
from tidal.server.stubs import live_stubs

_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Addresses (`host:port`) of a running server, and what it leaves to be seen on this machine."""

    http: str
    grpc: str
    metrics: str
    process: ServerProcess
    shm_prefix: str
    repository: Path
    log: Path

    @property
    def control(self) -> ServerControl:
        """The server's admin side."""
        return self.process.control

    @property
    def pid(self) -> int:
        """Process id of tritonserver."""
        return self.process.pid

    def log_text(self) -> str:
        """What the server and its models have logged."""
        return self.log.read_text(errors="replace")

    def stub_pids(self, model: str) -> list[int]:
        """Processes that serve a model."""
        return sorted(s.pid for s in live_stubs(self.pid) if s.model == model and not s.completes_config)

    def load_error(self, model: str) -> str:
        """Why a model does not serve; empty when it serves."""
        rows = [row for row in self.control.index() if row.name == model]
        return "" if any(row.state == "READY" for row in rows) else (rows[-1].reason if rows else "never loaded")

    def metrics_text(self) -> str:
        """The server's /metrics."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def shared_memory(self) -> dict[str, int]:
        """Size of this server's files in shared memory, by name."""
        return {path.name: path.stat().st_size for path in SHARED_MEMORY.glob(f"{self.shm_prefix}*")}

    def processes(self) -> list[psutil.Process]:
        """Processes of this server that run: itself and its stubs."""
        return processes_of(self.shm_prefix)


@contextmanager
def running_server(
    repository: Path,
    *,
    extra_backends: Mapping[str, Path] = {},
    arguments: Sequence[str] = (),
    models: Sequence[str] | None = None,
    key: str | None = None,
    exit_timeout_s: int = 15,
    access_log: str | None = None,
) -> Iterator[RunningServer]:
    """Run tritonserver over `repository` until the block ends.

    Args:
        repository: its folders are the models.
        extra_backends: backends beside Tidal's own, by name.
        arguments: further arguments of tritonserver.
        models: what to load; all models of the repository when None. One that fails to load is no error here.
        key: admin key; None leaves the admin endpoints open.
        exit_timeout_s: what the server leaves to requests in flight at its end.
        access_log: target of the request log.

    Raises:
        Internal: the server ended while starting.
    """
    names = sorted(p.name for p in repository.iterdir() if p.is_dir()) if models is None else models
    installation = find_installation()
    prefix = f"tidal_test_{os.getpid()}_{next(_counter)}_"
    ports = choose_endpoints("127.0.0.1", 0, 0, 0)
    with TemporaryDirectory(prefix="tidal-test-server-") as folder:
        log = Path(folder) / "log"
        backends = assemble(Path(folder) / "backends", installation, dict(extra_backends))
        safe = protection(installation)
        launch = Launch(
            installation, repository, backends, tuple(names), ports, prefix, key, exit_timeout_s, tuple(arguments),
            access_log, safe,
        )  # fmt: skip
        process = ServerProcess(launch, log)
        try:
            process.wait_live(threading.Event())
            yield RunningServer(
                ports.address(ports.http),
                ports.address(ports.grpc),
                ports.address(ports.metrics),
                process,
                prefix,
                repository,
                log,
            )
        finally:
            process.end(threading.Event())
            clean_up(prefix)
