"""A tritonserver on PATH has priority over the bundled one: here a wrapper that runs the bundled one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from testing.serving import TIDAL, environment_in, publish, serving, tidal
from tidal.server.installation import find_installation

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tritonserver` of an installation with NVIDIA's layout: bin, lib and backends under one root."""
    bundled = find_installation()
    root = tmp_path_factory.mktemp("triton")
    shutil.copytree(bundled.python_backend, root / "backends" / "python")
    shutil.copy2(bundled.stub, root / "backends" / "python")
    (root / "lib").symlink_to(bundled.libraries[0])
    wrapper = root / "bin" / "tritonserver"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$0" >> {root}/started\nexec {shlex.quote(str(bundled.binary))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture
def command(binary: Path) -> Sequence[str]:
    """`tidal` with that server's folder first in PATH."""
    return ["env", f"PATH={binary.parent}{os.pathsep}{os.environ['PATH']}", *TIDAL]


def test_doctor_reports_it(binary: Path, command: Sequence[str], tmp_path: Path) -> None:
    answer = tidal("doctor", "--json", environment=environment_in(tmp_path), command=command)
    checks = {check["name"]: check for check in json.loads(answer.stdout)["checks"]}
    assert checks["tritonserver"]["verdict"] == "ok", checks["tritonserver"]
    assert checks["tritonserver"]["found"].endswith(f", {binary} (path)")
    assert checks["python stub"]["verdict"] == "ok", checks["python stub"]


def test_serve_starts_it(binary: Path, command: Sequence[str], tmp_path: Path) -> None:
    publish(tmp_path / "models", "echo")
    with serving(tmp_path / "models", tmp_path / "runtime", command=command) as served:
        assert served.infer(seconds=0.1) == pytest.approx(0.1)
        assert served.infer_grpc(seconds=0.1) == pytest.approx(0.1)
        libraries = psutil.Process(served.report["server_pid"]).environ()["LD_LIBRARY_PATH"].split(os.pathsep)
        assert str(binary.parent.parent / "lib") in libraries
        assert (binary.parent.parent / "started").read_text().split()[-1] == str(binary)
    assert served.left_behind() == []
