"""Ending the processes of a session, also where its first process has ended, and removing what they left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from testing.clusters import runs
from testing.waiting import until
from tidal.cluster import records
from tidal.cluster.records import HEAD, ClusterRecord, StartedProcess, end_record, write_record
from tidal.server.cleanup import SHARED_MEMORY

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


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartedProcess:
    """A process that was killed, and a state folder of the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    started = StartedProcess.of(process.pid)
    process.kill()
    process.communicate()
    return started


def make_record(folder: Path, name: str, process: StartedProcess, **fields: Any) -> ClusterRecord:
    facts = {"address": "127.0.0.1:1", "host": "127.0.0.1", "token": None, "ray": process, "folder": folder / "ray"}
    record = ClusterRecord(name=name, **{**facts, **fields})
    write_record(record)
    return record


def test_the_secret_is_removed_with_the_head_and_not_with_a_node(tmp_path: Path, ended: StartedProcess) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    end_record(make_record(tmp_path, "n1", ended, token=token))
    assert token.exists()
    end_record(make_record(tmp_path, HEAD, ended, token=token))
    assert not token.exists()
    assert records.records() == []


def test_a_secret_that_the_operator_gave_stays(tmp_path: Path, ended: StartedProcess) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    end_record(make_record(tmp_path, HEAD, ended, token=token, keep_token=True))
    assert token.read_text() == "secret"
    assert records.records() == []


def test_shared_memory_of_a_server_whose_guardian_was_killed_is_removed(tmp_path: Path, ended: StartedProcess) -> None:
    files = [SHARED_MEMORY / f"tidal_{pid}_test" for pid in (ended.pid, os.getpid())]
    try:
        for file in files:
            file.touch()
        end_record(make_record(tmp_path, "n1", ended, serve=ended))
        # Another process has the id of the server by now.
        end_record(make_record(tmp_path, "n2", ended, serve=StartedProcess(pid=os.getpid(), started=1.0)))
        assert [file.exists() for file in files] == [False, True]
    finally:
        for file in files:
            file.unlink(missing_ok=True)
