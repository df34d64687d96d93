"""`--block`: a command that runs as long as what it started, and ends it when it is asked to."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.clusters import in_sessions, runs
from testing.serving import TIDAL, tidal_in_process
from testing.waiting import until
from tidal.cluster import leaving
from tidal.cluster.records import HEAD, ClusterRecord, StartedProcess, records, write_record
from tidal.commands import cluster_members
from tidal.errors import Unavailable


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own instead of Ray's, and a state folder of the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as started:
        yield started
        started.kill()


@pytest.fixture(autouse=True)
def kept_signal_handlers() -> Iterator[None]:
    """The signal handlers from before the test, which a command in this process replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def record_of(process: subprocess.Popen[bytes], name: str, folder: Path) -> ClusterRecord:
    folder.mkdir()
    record = ClusterRecord(
        name=name,
        address="127.0.0.1:1",
        host="127.0.0.1",
        token=None,
        ray=StartedProcess.of(process.pid),
        folder=folder,
    )
    write_record(record)
    return record


@pytest.mark.parametrize(("name", "left"), [(HEAD, ["_end_controller"]), ("a", ["_leave"])])
def test_a_request_ends_what_was_started(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, left: list[str]
) -> None:
    calls: list[str] = []
    for each in ("_end_controller", "_leave"):
        monkeypatch.setattr(leaving, each, lambda _record, each=each: calls.append(each))
    leave = threading.Event()
    leave.set()
    leaving.stay(record_of(process, name, tmp_path / "ray"), leave)
    assert (calls, records(), (tmp_path / "ray").exists()) == (left, [], False)
    assert process.wait(10) == -signal.SIGTERM


def test_a_node_whose_head_does_not_answer_is_ended_too(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    leave = threading.Event()
    leave.set()
    leaving.stay(record_of(process, "a", tmp_path / "ray"), leave)
    assert records() == []


def test_the_end_of_ray_is_an_error_with_its_output(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    record = record_of(process, "a", tmp_path / "ray")
    (record.folder / "output").write_text("started\nthe head does not answer\n")
    process.kill()
    process.wait(10)
    with pytest.raises(Unavailable, match="have ended: the head does not answer"):
        leaving.stay(record, threading.Event())
    assert records() == []


@pytest.mark.parametrize(("words", "waits"), [(["--block"], True), ([], False)])
def test_start_waits_on_request(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], waits: bool
) -> None:
    record = record_of(process, HEAD, tmp_path / "ray")
    waited: list[ClusterRecord] = []
    monkeypatch.setattr(cluster_members, "start", lambda *_args, **_options: record)
    monkeypatch.setattr(cluster_members, "stay", lambda each, _leave: waited.append(each))
    outcome = tidal_in_process("cluster", "start", *words, environment=dict(os.environ))
    assert (outcome.returncode, waited) == (0, [record] if waits else [])


def test_a_signal_during_the_start_ends_what_was_started(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(process, HEAD, tmp_path / "ray")

    def start(*_args: object, **_options: object) -> ClusterRecord:
        signal.raise_signal(signal.SIGTERM)
        return record

    monkeypatch.setattr(cluster_members, "start", start)
    monkeypatch.setattr(leaving, "_end_controller", lambda _record: None)
    outcome = tidal_in_process("cluster", "start", "--block", environment=dict(os.environ))
    assert outcome.returncode == 0
    assert process.wait(10) != 0
    assert records() == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_a_blocking_head_ends_at_a_signal_and_keeps_the_given_secret(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    words = ["cluster", "start", "--port", "0", "--token-file", str(token), "--block", "--json"]
    with subprocess.Popen([*TIDAL, *words], env=environment, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert str(token) in command.stdout.readline()
        file = tmp_path / "run" / "tidal" / "cluster" / "head.json"
        record = ClusterRecord.model_validate_json(file.read_bytes())
        try:
            processes = in_sessions([record.ray.pid])
            assert processes
            command.terminate()
            assert command.wait(60) == 0
        except BaseException:
            command.kill()
            for process in in_sessions([record.ray.pid]):
                process.kill()
            raise
    assert until(lambda: not any(map(runs, processes)))
    assert (token.read_text(), file.exists(), record.folder.exists()) == ("0123456789abcdef\n", False, False)
