"""A real tritonserver with the probe model, shared by the tests of the client."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tidal.server.installation import STUB_NAME, find_installation

_CONFIG = """
backend: "python"
max_batch_size: 64
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true }}
]
output [
  {{ name: "logits" data_type: TYPE_FP32 dims: [ 2 ] }},
  {{ name: "probabilities" data_type: TYPE_FP32 dims: [ 2 ] }},
  {{ name: "label" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "max_length" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "asked" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "echo" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "rows" data_type: TYPE_INT32 dims: [ 1 ] }}
]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters [ {{ key: "log_file" value: {{ string_value: "{log_file}" }} }} ]
"""


@dataclass(frozen=True)
class ProbeServer:
    """Where the server listens, and what the probe model wrote down."""

    http: str
    grpc: str
    log_file: Path
    process: subprocess.Popen[bytes]

    def url(self, protocol: str) -> str:
        return {"http": self.http, "grpc": self.grpc}[protocol]

    def wait_for_log(self, line: str, timeout_s: float = 10.0) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.log_file.exists() and line in self.log_file.read_text().splitlines():
                return True
            time.sleep(0.05)
        return False


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def probe_server(folder: Path) -> Iterator[ProbeServer]:
    """Start a tritonserver that serves the probe model as `probe`; ends it on the way out."""
    installation = find_installation()
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for source in (*installation.python_backend.iterdir(), installation.stub):
        if source.is_file():
            shutil.copy2(source, backend / source.name)
    (backend / STUB_NAME).chmod(0o755)
    version = folder / "models" / "probe" / "1"
    version.mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("probe_model.py"), version / "model.py")
    log_file = folder / "probe.log"
    (version.parent / "config.pbtxt").write_text(_CONFIG.format(log_file=log_file))

    http, grpc = free_ports(2)
    prefix = f"tidal_client_test_{os.getpid()}_{http}_"
    command = [
        str(installation.binary),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        "--allow-metrics=false",
        "--disable-auto-complete-config",
        "--exit-timeout-secs=5",
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=installation.environment(), stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    stubs: list[psutil.Process] = []
    try:
        _wait_ready(f"http://127.0.0.1:{http}/v2/health/ready", process, folder / "server.log")
        stubs = psutil.Process(process.pid).children(recursive=True)
        yield ProbeServer(f"http://127.0.0.1:{http}", f"grpc://127.0.0.1:{grpc}", log_file, process)
    finally:
        _end(process, stubs)
        for left in Path("/dev/shm").glob(f"{prefix}*"):
            left.unlink()


def _end(process: subprocess.Popen[bytes], stubs: list[psutil.Process]) -> None:
    """End the server, and the stubs that a killed one leaves behind."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stub in stubs:
        with contextlib.suppress(psutil.NoSuchProcess):
            stub.kill()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"tritonserver did not become ready:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbeServer]:
    with probe_server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: ProbeServer) -> str:
    return server.url(request.param)


@pytest.fixture
def closed_port() -> int:
    return free_ports(1)[0]
