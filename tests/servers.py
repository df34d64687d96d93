"""A real tritonserver for a test, without `tidal serve`: started on free ports, always stopped, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

import psutil
import tritonclient.http

from tidal.server.backend_directory import assemble
from tidal.server.endpoints import choose_endpoints
from tidal.server.installation import find_installation
from tidal.server.stubs import live_stubs

_SHM = Path("/dev/shm")
_numbers = count()


@dataclass
class TestServer:
    """A running tritonserver. `http`, `grpc` and `metrics` are `host:port`."""

    __test__ = False  # not a test class, whatever its name says

    process: subprocess.Popen[bytes]
    http: str
    grpc: str
    metrics: str
    log_file: Path
    shm_prefix: str
    seen_stubs: set[psutil.Process] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @cached_property
    def control(self) -> tritonclient.http.InferenceServerClient:
        """For load_model, unload_model, get_model_repository_index. Not thread-safe: one thread at a time."""
        return tritonclient.http.InferenceServerClient(self.http, network_timeout=120, connection_timeout=120)

    def stubs(self, model: str | None = None) -> list[int]:
        """Process ids of the stubs that serve a model (of all models: None), without those that complete a config."""
        return [stub.pid for stub in live_stubs(self.pid) if not stub.completes_config and model in (None, stub.model)]

    def live(self) -> bool:
        """Whether the process runs and says that it is live."""
        try:
            return self.process.poll() is None and _get(f"http://{self.http}/v2/health/live") is not None
        except (urllib.error.URLError, OSError):
            return False

    def metric(self, family: str, **labels: str) -> float | None:
        """Value of the series of a family whose labels include the given ones, summed; None when there is none."""
        values = [
            float(line.rpartition(" ")[2])
            for line in _get(f"http://{self.metrics}/metrics").splitlines()
            if line.startswith((f"{family}{{", f"{family} ")) and all(f'{k}="{v}"' in line for k, v in labels.items())
        ]
        return sum(values) if values else None

    def shm_files(self) -> list[Path]:
        """Shared-memory files of this server's stubs."""
        return sorted(_SHM.glob(f"{self.shm_prefix}*"))

    def remember_stubs(self) -> None:
        """Keep the stubs that run now in mind, to end those that outlive the server."""
        with suppress(psutil.Error):
            self.seen_stubs.update(psutil.Process(self.pid).children(recursive=True))

    def terminate(self, timeout_s: float = 60) -> int:
        """SIGTERM, and wait; the exit status.

        Raises:
            subprocess.TimeoutExpired: the server did not end.
        """
        self.remember_stubs()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def running_server(
    repository: Path,
    *,
    models: Sequence[str] | None = None,
    extra_backends: Mapping[str, Path] | None = None,
    args: Sequence[str] = (),
    ready_timeout_s: float = 120,
) -> Iterator[TestServer]:
    """A tritonserver over `repository` until the block ends, however it ends.

    Args:
        repository: model repository; model control is explicit.
        models: models to load at the start, all of the repository's by default.
        extra_backends: further backends by name: folders with a `model.py`.
        args: further arguments of tritonserver.
        ready_timeout_s: seconds for the models to load.

    Raises:
        RuntimeError: it ended or was not ready in time; carries the end of its log.
    """
    if models is None:
        models = sorted(path.name for path in repository.iterdir() if path.is_dir())
    ports = choose_endpoints("127.0.0.1", 0, 0, 0)
    prefix = f"tidal_test_{os.getpid()}_{next(_numbers)}_"
    installation = find_installation()
    with tempfile.TemporaryDirectory(prefix="tidal-test-") as folder:
        backends = assemble(Path(folder) / "backends", installation, dict(extra_backends or {}))
        command = [
            str(installation.binary),
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in models),
            *(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={prefix}",
            *args,
        ]
        log_file = Path(folder) / "server.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                command, env=installation.environment(), cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        addresses = [f"127.0.0.1:{port}" for port in (ports.http, ports.grpc, ports.metrics)]
        server = TestServer(process, *addresses, log_file, prefix)
        try:
            _wait_ready(server, ready_timeout_s)
            yield server
        finally:
            _end(server)


def _wait_ready(server: TestServer, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and server.process.poll() is None:
        with suppress(urllib.error.URLError, OSError):
            _get(f"http://{server.http}/v2/health/ready")
            return
        time.sleep(0.05)
    raise RuntimeError(f"tritonserver did not become ready:\n{server.log[-4000:]}")


def _end(server: TestServer) -> None:
    if server.process.poll() is None:
        try:
            server.terminate(20)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
    for stub in server.seen_stubs:
        with suppress(psutil.Error):
            stub.kill()
    psutil.wait_procs(list(server.seen_stubs), timeout=5)
    for path in server.shm_files():
        path.unlink(missing_ok=True)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
