"""What `tidal cluster` refuses before it starts anything, and without Ray."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.serving import tidal_in_process
from tidal.cluster.records import ClusterRecord, StartedProcess, records, write_record
from tidal.commands.cluster_status import models_of
from tidal.controller.decisions import PlanSettings
from tidal.controller.scaling import ScalingSettings

Run = Callable[..., Any]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tidal.cluster.connection._REACH_S", 1.0)

    def command(*words: str) -> Any:
        return tidal_in_process("cluster", *words, environment=dict(os.environ))

    return command


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["status"], 3, "this machine is in no cluster: run tidal cluster start, join or up first"),
        (["models"], 3, "this machine is in no cluster: run tidal cluster start, join or up first"),
        (["drain", "b"], 3, "this machine is in no cluster"),
        (["join", "here"], 2, "'here' is not an address; expected HOST:PORT, such as 10.0.0.1:6379"),
        (["join", "10.0.0.1:6379"], 2, "--host is required: the address of this machine for other nodes"),
        (["join", "127.0.0.1:6379", "--token-file", "none"], 2, "none is not a file; expected the secret"),
        (["join", "127.0.0.1:6379", "--key", "k.pem"], 2, "--certificate and --key are given together"),
        (["join", "127.0.0.1:6379"], 3, "no server is running: start one with tidal serve"),
        (["start", "--token-file", "none"], 2, "--token-file: none is not a file; expected the secret"),
        (["start", "--token-file", "none", "--insecure"], 2, "--insecure and --token-file exclude each other"),
        (["start", "--period", "0"], 2, "--period must be between 1 and 86,400 seconds, got 0"),
        (["start", "--max-nodes", "2"], 2, "--max-nodes 2 needs --autoscale"),
        (["start", "--autoscale", "--min-nodes", "2"], 2, "--min-nodes 2 needs --max-nodes"),
        (["start", "--autoscale", "--max-instances", "0"], 2, "--max-instances must be at least 1, got 0"),
        (["start", "--metrics-port", "70000"], 2, "Invalid value for '--metrics-port'"),
        (["up", ".", "--local", "2", "--min-instances", "4"], 2, "--min-instances 4 needs --autoscale"),
        (["up", "none", "--local", "2"], 1, "model repository 'none' is not a folder"),
        (["up", ".", "--local", "2", "--entrances", "3"], 2, "--entrances 3 exceeds the number of nodes, --local 2"),
        (["up", ".", "--local", "2", "--entrances", "0"], 2, "Invalid value for '--entrances'"),
    ],
)
def test_bad_input(run: Run, words: list[str], code: int, message: str) -> None:
    outcome = run(*words)
    assert (outcome.returncode, message in outcome.stderr) == (code, True), outcome.stderr


def test_local_nodes_are_scaled_as_others(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[PlanSettings] = []

    def up(count: int, entrances: int, repository: Path, settings: PlanSettings, *_: object) -> ClusterRecord:
        given.append(settings)
        return record("head", tmp_path, 1, os.getpid())

    monkeypatch.setattr("tidal.commands.cluster_members.up", up)
    for options in ([], ["--autoscale", "--min-instances", "4", "--max-instances", "6"]):
        assert run("up", str(tmp_path), "--local", "2", *options).returncode == 0
    assert [each.scaling for each in given] == [None, ScalingSettings(4, 6, 1, None)]


@pytest.mark.parametrize("words", [["start"], ["join", "127.0.0.1:6379"]])
def test_an_empty_secret_is_refused(run: Run, tmp_path: Path, words: list[str]) -> None:
    file = tmp_path / "token"
    file.write_text(" \n")
    outcome = run(*words, "--token-file", str(file))
    assert (outcome.returncode, f"--token-file: {file} is empty; expected" in outcome.stderr) == (2, True)


@pytest.mark.parametrize("words", [["start"], ["up", ".", "--local", "1"]])
def test_without_ray_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find_spec(name, *rest)
    )
    outcome = run(*words)
    assert outcome.returncode == 1
    assert outcome.stderr.endswith("error: Ray is not installed: install the extra ray, pip install 'tidal[ray]'\n")


@needs_ray
def test_ports_of_metrics_are_checked_before_anything_starts(run: Run, tmp_path: Path) -> None:
    twice = run("start", "--port", "7001", "--metrics-port", "7001")
    assert (twice.returncode, "--metrics-port 7001 is given twice" in twice.stderr) == (1, True), twice.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = run("start", "--port", "0", "--metrics-port", str(port))
    assert (taken.returncode, f"metrics port {port} is in use" in taken.stderr) == (1, True), taken.stderr
    assert "choose another with --metrics-port, or 0 for a free one" in taken.stderr
    assert records() == []


def record(name: str, folder: Path, port: int, pid: int, started: float | None = None) -> ClusterRecord:
    process = StartedProcess.of(pid) if started is None else StartedProcess(pid=pid, started=started)
    return ClusterRecord(
        name=name, address=f"127.0.0.1:{port}", host="127.0.0.1", token=None, ray=process, folder=folder / name
    )


@needs_ray
def test_a_head_that_does_not_answer_is_named(run: Run, tmp_path: Path) -> None:
    port = free_port()
    write_record(record("n1", tmp_path, port, os.getpid()))
    outcome = run("status")
    assert outcome.returncode == 3
    assert f"no head answers at 127.0.0.1:{port}" in outcome.stderr


def test_stop_removes_what_ended_processes_left(run: Run, tmp_path: Path) -> None:
    assert run("stop").stdout == "nothing was started on this machine\n"
    # The process id is in use by another process: that one is left alone.
    ended = record("n1", tmp_path, free_port(), os.getpid(), started=1.0)
    ended.folder.mkdir()
    write_record(ended)
    assert "Ray's processes of 'n1' have ended" in run("status").stderr
    assert run("stop").stdout == "ended: n1\n"
    assert records() == []
    assert not ended.folder.exists()


def test_models_are_those_of_all_nodes() -> None:
    def model(name: str, version: int, instances: dict[str, int], per_s: float | None) -> dict[str, object]:
        return {"model": name, "version": version, "instances": instances, "queries_per_s": per_s}

    nodes = [
        {"node": "a", "models": [model("m", 3, {"16": 2, "64": 1}, 1.5)], "other_models": ["chat", "encoder"]},
        {"node": "b", "models": [model("m", 4, {"16": 0, "64": 2}, None)], "other_models": ["chat"]},
        {"node": "c", "state": "silent", "reason": "no answer"},
    ]
    chat, encoder, m = models_of({"nodes": nodes})
    assert (chat["model"], chat["partitioned"], chat["nodes"]) == ("chat", False, ["a", "b"])
    assert encoder["nodes"] == ["a"]
    assert m == {
        "model": "m", "partitioned": True, "versions": [3, 4], "nodes": ["a", "b"],
        "instances": {"16": 2, "64": 3}, "queries_per_s": 1.5,
    }  # fmt: skip
