"""Ending the processes of a session, also where its first process has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from testing.waiting import until
from tidal.cluster.records import StartedProcess

# Starts a child that ignores SIGTERM, writes its id, and sleeps.
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


def start(file: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(file)], start_new_session=True)
    assert until(lambda: file.exists() and file.read_text() != "")
    return parent, psutil.Process(int(file.read_text()))


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_child_that_ignores_the_signal_ends_too(tmp_path: Path) -> None:
    parent, child = start(tmp_path / "child")
    StartedProcess.of(parent.pid).end(0.5)
    assert until(lambda: not runs(child))
    assert parent.wait(10) == -15


def test_orphans_of_an_ended_session_end(tmp_path: Path) -> None:
    parent, child = start(tmp_path / "child")
    started = StartedProcess.of(parent.pid)
    parent.kill()
    parent.wait(10)
    assert not started.alive()
    assert runs(child)
    started.end(0.5)
    assert until(lambda: not runs(child))


def test_a_process_with_a_reused_id_is_left_alone(tmp_path: Path) -> None:
    parent, child = start(tmp_path / "child")
    try:
        StartedProcess(pid=parent.pid, started=1.0).end(0.2)
        assert runs(child)
    finally:
        StartedProcess.of(parent.pid).end(0.2)
        parent.wait(10)
