"""The repository under tritonserver alone, by the command that `tidal serve --assemble` prints."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from testing.serving import MODEL, Served, environment_in, publish, tidal
from testing.waiting import until
from tests.serve.hostile import FORM, chunks, exchange, filled, status
from tidal.http_guard.build import build
from tidal.server.endpoints import choose_endpoints

pytestmark = pytest.mark.server


def test_runs_without_tidal_serve(tmp_path: Path) -> None:
    build()
    publish(tmp_path / "models", "echo", code="import ssl\n" + MODEL.read_text())
    environment = environment_in(tmp_path)
    backends = tmp_path / "backends"
    printed = tidal("serve", str(tmp_path / "models"), "--assemble", str(backends), environment=environment)
    assert printed.returncode == 0, printed.stderr
    ports = choose_endpoints("127.0.0.1", 0, 0, 0)
    command = (
        f"exec {printed.stdout.strip()} --http-address=127.0.0.1 --grpc-address=127.0.0.1 --http-port={ports.http} "
        f"--grpc-port={ports.grpc} --metrics-port={ports.metrics}"
    )
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            ["bash", "-c", command],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
    served = Served(server, {"http": f"127.0.0.1:{ports.http}"}, tmp_path, environment)

    def answers() -> bool:
        assert server.poll() is None, (tmp_path / "log").read_text()
        try:
            return served.infer(seconds=0.0) == 0.0
        except Exception:
            return False

    try:
        assert until(answers), (tmp_path / "log").read_text()
        assert (backends / "arlo" / "model.py").is_file()
        address = f"127.0.0.1:{ports.http}"
        assert status(exchange(address, chunks(1_000_000), [("Transfer-Encoding", "chunked")])) == 413
        assert (
            status(exchange(address, filled(5_000_000), [("Content-Length", 5_000_000), ("Content-Type", FORM)])) == 413
        )
        assert answers()
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
