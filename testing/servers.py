"""A real tritonserver for the length of a block, started directly, without `tidal serve` around it."""

from __future__ import annotations

import itertools
import os
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tidal.errors import Internal
from tidal.server.backend_directory import assemble
from tidal.server.cleanup import SHARED_MEMORY, processes_of
from tidal.server.control import ServerControl
from tidal.server.endpoints import choose_endpoints
from tidal.server.installation import find_installation
from tidal.server.launch import Launch
from tidal.server.process import ServerProcess
from tidal.server.protection import protection
from tidal.server.stubs import live_stubs

_counter = itertools.count()
# Below the limit of a test, so that a server that hangs while it starts is reported with its log.
_START_S = 200.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server: its addresses (`host:port`), process, log and shared memory."""

    http: str
    grpc: str
    metrics: str
    process: ServerProcess
    shm_prefix: str
    repository: Path
    log: Path

    @property
    def control(self) -> ServerControl:
        """Admin API of the server."""
        return self.process.control

    @property
    def pid(self) -> int:
        """Process id of tritonserver."""
        return self.process.pid

    def log_text(self) -> str:
        """The log of the server and its models."""
        return self.log.read_text(errors="replace")

    def stub_pids(self, model: str) -> list[int]:
        """Process ids of the stubs that serve a model."""
        return sorted(s.pid for s in live_stubs(self.pid) if s.model == model and not s.completes_config)

    def load_error(self, model: str) -> str:
        """Why a model does not serve; empty when it serves."""
        rows = [row for row in self.control.index() if row.name == model]
        return "" if any(row.state == "READY" for row in rows) else (rows[-1].reason if rows else "never loaded")

    def serves(self, model: str) -> bool:
        """Whether a version of a model is ready."""
        return any(row.name == model and row.state == "READY" for row in self.control.index())

    def metrics_text(self) -> str:
        """The text of the server's /metrics."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def shared_memory(self) -> dict[str, int]:
        """Sizes of this server's shared-memory files in bytes, by name."""
        return {path.name: path.stat().st_size for path in SHARED_MEMORY.glob(f"{self.shm_prefix}*")}

    def processes(self) -> list[psutil.Process]:
        """Running processes of this server: itself and its stubs."""
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
        repository: Folder of the model repository.
        extra_backends: Folders of backends besides Tidal's own, by name.
        arguments: Further arguments of tritonserver.
        models: Models to load; None for all of the repository. A failed load is not an error here.
        key: Admin key; None leaves the admin endpoints open.
        exit_timeout_s: Time in seconds for requests in flight at shutdown.
        access_log: Target of the request log; None for no log.

    Raises:
        Internal: The server ended while starting, or did not start in time.
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
        process = _started(launch, log)
        try:
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
            # A clean end takes seconds; tests that are about it wait for it within the block.
            process.kill()


def _started(launch: Launch, log: Path, *, again: bool = True) -> ServerProcess:
    """Start a server that answers; one that crashes before is started once more, as `tidal serve` does.

    tritonserver 2.51 rarely aborts in its gRPC library while it starts: "epoll_wait error: Bad file descriptor".
    """
    process = ServerProcess(launch, log)
    start_by = time.monotonic() + _START_S

    def check_time() -> None:
        if time.monotonic() > start_by:
            seen = log.read_text(errors="replace")[-20_000:]
            raise Internal(f"tritonserver did not start within {_START_S:.0f} s; its log ends with:\n{seen}")

    try:
        process.wait_live(threading.Event(), check_time)
    except BaseException as error:
        crashed = isinstance(error, Internal) and (process.exit_status() or 0) < 0
        process.kill()
        if again and crashed:
            return _started(launch, log, again=False)
        raise
    return process
