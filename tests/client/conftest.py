"""A real tritonserver with the probe model, shared by the tests of the client."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.servers import running_server
from testing.waiting import until
from tidal.server.endpoints import choose_port
from tidal_client import AsyncClient, Client

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

_ENCODER_CONFIG = """
backend: "python"
max_batch_size: {max_rows}
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true }}
]
output [ {outputs} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters [ {{ key: "log_file" value: {{ string_value: "{log_file}" }} }} ]
"""
# Outputs of the stand-in for encoders, by the name of the model that has them.
_ENCODERS = {
    "embedder": "embedding FP32 -1, embedding_fp16 FP16 -1, embedding_int8 INT8 -1, embedding_binary UINT8 -1",
    "scorer": "score FP32 1",
    "marker": "entities STRING 1",
    "answerer": "answer STRING 1, answers STRING 1, score FP32 1",
    "filler": "predictions STRING 1",
    "splade": "indices INT32 -1, weights FP32 -1",
    "labeler": "label STRING 1, labels STRING 1, probabilities FP32 2",
}
#: Maximum number of rows of these models' requests.
MAX_ROWS = 8


@dataclass(frozen=True)
class ProbeServer:
    """Addresses of the server, and the logs of the probe model and of the stand-ins for encoders."""

    http: str
    grpc: str
    log_file: Path
    pid: int
    rows_log: Path

    def url(self, protocol: str) -> str:
        return {"http": self.http, "grpc": self.grpc}[protocol]

    def wait_for_log(self, line: str, timeout_s: float = 60.0) -> bool:
        return until(lambda: self.log_file.exists() and line in self.log_file.read_text().splitlines(), timeout_s)


def write_probe(repository: Path, log_file: Path) -> None:
    """Add the probe model to a repository as `probe`."""
    version = repository / "probe" / "1"
    version.mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("probe_model.py"), version / "model.py")
    (version.parent / "config.pbtxt").write_text(_CONFIG.format(log_file=log_file))


def write_encoders(repository: Path, log_file: Path) -> None:
    """Add the stand-ins for encoders to a repository."""
    for model, declared in _ENCODERS.items():
        version = repository / model / "1"
        version.mkdir(parents=True)
        shutil.copy2(Path(__file__).with_name("encoder_model.py"), version / "model.py")
        tensors = [each.split() for each in declared.split(", ")]
        outputs = ", ".join(
            f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {size} ] }}' for name, kind, size in tensors
        )
        config = _ENCODER_CONFIG.format(max_rows=MAX_ROWS, outputs=outputs, log_file=log_file)
        (version.parent / "config.pbtxt").write_text(config)


@contextlib.contextmanager
def probe_server(folder: Path) -> Iterator[ProbeServer]:
    """Start a tritonserver that serves the probe model as `probe`; ends it on the way out."""
    log_file, rows_log = folder / "probe.log", folder / "rows.log"
    write_probe(folder / "models", log_file)
    write_encoders(folder / "models", rows_log)
    with running_server(folder / "models", exit_timeout_s=5) as server:
        assert server.load_error("probe") == ""
        yield ProbeServer(f"http://{server.http}", f"grpc://{server.grpc}", log_file, server.pid, rows_log)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbeServer]:
    with probe_server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: ProbeServer) -> str:
    return server.url(request.param)


@pytest.fixture
def closed_port() -> int:
    return choose_port("127.0.0.1")


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, url: str) -> Callable[..., Any]:
    """Return a function that calls a client's method by name, with each of the four transports."""

    def blocking(method: str, *args: Any, **kwargs: Any) -> Any:
        with Client(url) as client:
            return getattr(client, method)(*args, **kwargs)

    def awaited(method: str, *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(url) as client:
                return await getattr(client, method)(*args, **kwargs)

        return asyncio.run(run())

    return blocking if request.param == "sync" else awaited
