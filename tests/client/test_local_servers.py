"""Detection of local servers by the state files of `tidal serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tidal.server.state import ServerState, running_servers, write_state
from tidal_client import InvalidArgument
from tidal_client import local_servers as client_side
from tidal_client.main import build_app


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def state(port: int, pid: int | None = None, **changes: Any) -> ServerState:
    """A server's state, of this process or another."""
    started = psutil.Process(pid).create_time()
    fields: dict[str, Any] = {"http": f"127.0.0.1:{port}", "grpc": f"127.0.0.1:{port + 1}", "metrics": "127.0.0.1:1"}
    fields |= {"key": "k" * 8, "pid": pid or os.getpid(), "pid_started": started, "server_pid": 1, "version": "2.51.0"}
    return ServerState(**fields | {"repository": Path("/r"), "log": None} | changes)


def run(*args: str) -> Any:
    return CliRunner(env={"COLUMNS": "300", "NO_COLOR": "1"}).invoke(build_app(), [*args])


def test_both_sides_find_the_same_servers(runtime: Path) -> None:
    for port in (9000, 10000):
        write_state(state(port))
    assert [each.http for each in running_servers()] == ["127.0.0.1:9000", "127.0.0.1:10000"]
    assert client_side.running_servers() == [
        client_side.LocalServer("127.0.0.1:9000", "127.0.0.1:9001", metrics="127.0.0.1:1"),
        client_side.LocalServer("127.0.0.1:10000", "127.0.0.1:10001", metrics="127.0.0.1:1"),
    ]


def test_the_only_server_is_chosen_and_unknown_fields_are_ignored(runtime: Path) -> None:
    file = write_state(state(9000))
    file.write_text(json.dumps({**json.loads(file.read_text()), "something_new": {"a": 1}}))
    assert client_side.choose_url("grpc") == "grpc://127.0.0.1:9001"
    assert client_side.choose_url("http") == "http://127.0.0.1:9000"


def test_a_server_with_grpc_tls_is_used_over_http(runtime: Path) -> None:
    file = write_state(state(9000))
    file.write_text(json.dumps({**json.loads(file.read_text()), "grpc_tls": True}))
    assert client_side.choose_url("grpc") == "http://127.0.0.1:9000"


def test_ended_servers_and_other_files_are_ignored(runtime: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        write_state(state(9000, process.pid))
        assert len(client_side.running_servers()) == 1
        process.kill()
        process.wait()
        assert client_side.running_servers() == []
    # A later process with the same id.
    write_state(state(9000, pid_started=1.0))
    for name, text in (("a", "{"), ("b", "[]"), ("c", "{}"), ("d", '{"http": 1, "grpc": 2, "pid": "x"}')):
        (runtime / "tidal" / f"{name}.json").write_text(text)
    assert client_side.running_servers() == []
    assert client_side.choose_url("grpc") == "grpc://127.0.0.1:8001"
    assert client_side.choose_url("http") == "http://127.0.0.1:8000"


def test_a_folder_that_others_may_write_is_ignored(runtime: Path) -> None:
    write_state(state(9000))
    (runtime / "tidal").chmod(0o777)
    assert client_side.running_servers() == []


def test_of_several_servers_one_has_to_be_named(runtime: Path) -> None:
    for port in (9000, 9100):
        write_state(state(port))
    with pytest.raises(InvalidArgument, match=r"choose one of grpc://127\.0\.0\.1:9001, grpc:"):
        client_side.choose_url("grpc")
    for args in (("infer", "m", "-t", "a"), ("generate", "m", "-t", "a"), ("load", "m", "-r", "1")):
        done = run(*args)
        assert done.exit_code == 2
        assert "--url" in done.stderr
        assert "several servers are running: choose one of" in done.stderr


def test_tasks_of_several_repositories_ask_for_one(runtime: Path) -> None:
    for port in (9000, 9100):
        write_state(state(port, repository=Path(f"/r{port}")))
    done = run("tasks", "list", "m")
    assert done.exit_code == 1
    assert "several servers are running: choose a repository by --repository, /r9000, /r9100" in done.stderr


def test_without_a_server_commands_say_what_to_do(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Something may listen on the default ports of this machine.
    monkeypatch.setattr(client_side, "_DEFAULT_PORTS", {"http": 1, "grpc": 1})
    for args in (("infer", "m", "-t", "a"), ("generate", "m", "-t", "a"), ("load", "m", "-r", "1")):
        done = run(*args)
        assert done.exit_code == 1
        assert "CONNECTION_FAILED: no connection to " in done.stderr
        assert "no server of this user is running: start one with `tidal serve` or give --url" in done.stderr
    named = run("infer", "m", "-t", "a", "--url", "grpc://127.0.0.1:1")
    assert "start one" not in named.stderr
