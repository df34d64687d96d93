"""A real tritonserver with the probe model, shared by the tests of the client."""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from testing.servers import running_server
from testing.waiting import until
from tidal.server.endpoints import choose_endpoints
from tidal_client.load import loop

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
    """Addresses of the server, and the log of the probe model."""

    http: str
    grpc: str
    log_file: Path
    pid: int

    def url(self, protocol: str) -> str:
        return {"http": self.http, "grpc": self.grpc}[protocol]

    def wait_for_log(self, line: str, timeout_s: float = 10.0) -> bool:
        return until(lambda: self.log_file.exists() and line in self.log_file.read_text().splitlines(), timeout_s)


def write_probe(repository: Path, log_file: Path) -> None:
    """Add the probe model to a repository as `probe`."""
    version = repository / "probe" / "1"
    version.mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("probe_model.py"), version / "model.py")
    (version.parent / "config.pbtxt").write_text(_CONFIG.format(log_file=log_file))


@contextlib.contextmanager
def probe_server(folder: Path) -> Iterator[ProbeServer]:
    """Start a tritonserver that serves the probe model as `probe`; ends it on the way out."""
    log_file = folder / "probe.log"
    write_probe(folder / "models", log_file)
    with running_server(folder / "models", exit_timeout_s=5) as server:
        assert server.load_error("probe") == ""
        yield ProbeServer(f"http://{server.http}", f"grpc://{server.grpc}", log_file, server.pid)


@pytest.fixture(scope="package", autouse=True)
def _no_collection() -> Iterator[None]:
    """Skip the garbage collection before each run of the load generator: in a large test session it takes a second."""
    quick = SimpleNamespace(collect=lambda: 0, freeze=gc.freeze, unfreeze=gc.unfreeze)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "gc", quick)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbeServer]:
    with probe_server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: ProbeServer) -> str:
    return server.url(request.param)


@pytest.fixture
def closed_port() -> int:
    return choose_endpoints("127.0.0.1", 0, 0, 0).http
