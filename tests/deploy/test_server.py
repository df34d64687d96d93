"""The server that the tests run is in the table of releases, and publishes what is made of its metrics."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc

from testing.servers import RunningServer, running_server
from testing.serving import CONFIG, MODEL
from tests.deploy.project import ON_GPUS, SERVERS_OWN
from tidal.device import has_gpu
from tidal.server.installation import find_installation
from tidal.server.releases import RELEASES, installed_version

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("repository")
    (folder / "echo" / "1").mkdir(parents=True)
    shutil.copy(MODEL, folder / "echo" / "1" / "model.py")
    (folder / "echo" / "config.pbtxt").write_text(CONFIG % 1)
    with running_server(folder) as running:
        yield running


def test_the_server_that_runs_here_is_listed_as_executed(server: RunningServer) -> None:
    version = server.control.version()
    assert version in {release.version for release in RELEASES if release.executed}
    assert version == installed_version(find_installation())


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
