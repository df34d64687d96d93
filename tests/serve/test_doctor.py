"""`tidal doctor`."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from testing.serving import environment_in, tidal, tidal_in_process
from tidal.http_guard.build import build

pytestmark = pytest.mark.server


def test_detects_the_server_and_its_requirements(tmp_path: Path) -> None:
    build()
    leftover = Path(f"/dev/shm/tidal_0_leftover_of_test_{os.getpid()}")
    leftover.write_bytes(b"x" * 100)
    try:
        answer = tidal("doctor", "--json", environment=environment_in(tmp_path))
    finally:
        leftover.unlink()
    report = json.loads(answer.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert (answer.returncode, report["can_serve"]) == (0, True)
    assert re.match(r"2\.\d+\.\d+, /", checks["tritonserver"]["found"])
    assert checks["Triton release"]["found"].startswith("24.10 (2.51.0)")
    assert checks["protection"]["verdict"] == "ok"
    known = {name: each for each in report["vulnerabilities"] for name in each["names"]}
    assert known["CVE-2025-23310"]["protected_by"] == known["CVE-2025-23311"]["protected_by"] == "HTTP guard"
    assert known["CVE-2025-23319"]["protected_by"] == known["CVE-2025-23316"]["protected_by"] == "admin key"
    assert (known["CVE-2025-23317"]["fixed_in"], known["CVE-2025-23317"]["protected_by"]) == ("25.07", "")
    assert checks["python stub"]["verdict"] == "ok"
    assert checks["engine openvino"]["verdict"] == "ok"
    assert checks["leftovers"]["verdict"] == "warning"
    assert str(leftover) in checks["leftovers"]["advice"]
    assert {"GPU", "/dev/shm", "port 8000", "port 8001", "port 8002", "extra serve", "extra build"} <= checks.keys()


def test_reports_a_failed_check_and_exits_with_1(tmp_path: Path) -> None:
    """A tritonserver on PATH has priority, here one without its Python backend."""
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin" / "tritonserver"
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    environment = environment_in(tmp_path)
    environment["PATH"] = f"{binary.parent}:{environment['PATH']}"
    answer = tidal_in_process("doctor", environment=environment)
    assert answer.returncode == 1
    assert "has no Python backend" in answer.stdout
    assert "This machine cannot serve" in answer.stdout


def test_names_the_process_that_uses_a_port(tmp_path: Path) -> None:
    with socket.socket() as holder:
        try:
            holder.bind(("127.0.0.1", 8002))
        except OSError:
            pytest.skip("port 8002 is in use on this machine")
        holder.listen()
        answer = tidal_in_process("doctor", "--json", environment=environment_in(tmp_path))
    check = next(c for c in json.loads(answer.stdout)["checks"] if c["name"] == "port 8002")
    assert check["verdict"] == "warning"
    assert "process" in check["found"]
    assert check["advice"] == "tidal serve --metrics-port 0 uses a free one"
