"""The server that the image carries is the one of the tests, and publishes what is made of its metrics."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc

from tests.deploy.project import ON_GPUS, ROOT, SERVERS_OWN
from tests.serve.served import CONFIG, MODEL
from tests.servers import RunningServer, running_server
from tidal.device import has_gpu

pytestmark = pytest.mark.server

# From the release notes of NVIDIA's images.
_SERVERS = {"24.10": "2.51.0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("repository")
    (folder / "echo" / "1").mkdir(parents=True)
    shutil.copy(MODEL, folder / "echo" / "1" / "model.py")
    (folder / "echo" / "config.pbtxt").write_text(CONFIG % 1)
    with running_server(folder) as running:
        yield running


def test_the_image_carries_the_server_that_runs_here(server: RunningServer) -> None:
    (release,) = re.findall(r"^ARG TRITON_RELEASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert server.control.version() == _SERVERS[release]


def test_the_server_publishes_what_the_dashboard_reads(server: RunningServer) -> None:
    tensor = tritonclient.grpc.InferInput("SECONDS", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.infer("echo", [tensor], client_timeout=20)
    published = set(re.findall(r"^(nv_\w+)", server.metrics_text(), re.MULTILINE))
    assert published >= SERVERS_OWN | (ON_GPUS if has_gpu() else set())


def test_prometheus_can_read_the_page(server: RunningServer) -> None:
    with urlopen(f"http://{server.metrics}/metrics", timeout=10) as page:
        assert page.headers["Content-Type"].startswith("text/plain")
