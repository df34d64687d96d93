"""Processes and environments of the peers of the benchmark of encoders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import environments
from benchmarks.encoders import systems
from benchmarks.encoders.processes import paused, read_counts, stop
from testing.waiting import until


def test_paused_processes_stop_with_their_children_and_end_when_stopped() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = subprocess.Popen([sys.executable, "-c", code], text=True)
    assert until(lambda: bool(psutil.Process(process.pid).children()))
    (child,) = psutil.Process(process.pid).children()

    def status() -> set[str]:
        return {psutil.Process(pid).status() for pid in (process.pid, child.pid)}

    with paused([process.pid]):
        assert until(lambda: status() == {psutil.STATUS_STOPPED})
    assert until(lambda: psutil.STATUS_STOPPED not in status())
    stop(process)
    assert process.poll() is not None
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_batches_of_all_processes_are_added(tmp_path: Path) -> None:
    assert read_counts(tmp_path) is None
    (tmp_path / "output.txt").write_text("no counts")
    counter = "import sys; sys.path.insert(0, sys.argv[1]); from batch_counter import BatchCounter\n"
    counter += "found = BatchCounter(sys.argv[2]); found.add(5); found.add(1)"
    serving = Path(systems.__file__).with_name("serving")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", counter, str(serving), str(tmp_path)], check=True)
    assert read_counts(tmp_path) == (12.0, 4.0)


def test_a_failed_installation_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert environments.why_not("servers") == "it was not installed: run make peers"
    results = iter((subprocess.CompletedProcess([], 1, "", "ERROR: no such version\n"), None))
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return next(results) or subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(environments.subprocess, "run", run)
    monkeypatch.setattr(
        environments.venv, "create", lambda folder, **options: folder.mkdir(parents=True, exist_ok=True)
    )
    environments.install("servers")
    assert environments.why_not("servers") == "ERROR: no such version"
    environments.install("servers", "https://index")
    assert environments.why_not("servers") == ""
    assert "https://index" in commands[1]
    environments.install("servers")  # nothing to do
    assert len(commands) == 2


@pytest.mark.parametrize("name", environments.PACKAGES)
def test_every_package_of_an_environment_is_pinned(name: str) -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in environments.constraints(name).read_text().splitlines()
        if not line.startswith("#")
    }
    assert {package.partition("[")[0] for package in environments.PACKAGES[name]} <= pinned
    assert not {each for each in pinned if "nvidia" in each or "cuda" in each}
