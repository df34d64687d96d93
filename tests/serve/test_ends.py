"""The end of `tidal serve`: exit codes, requests in flight, and that nothing is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from testing.serving import (
    FREE_PORTS,
    TIDAL,
    Served,
    environment_in,
    left_behind,
    publish,
    serving,
    tidal,
    tidal_in_process,
)
from testing.waiting import until
from tidal.server.status_endpoint import read_readiness

pytestmark = pytest.mark.server


def test_sigterm_answers_requests_in_flight(served: Served, repository: Path, tmp_path: Path) -> None:
    """A second server next to the shared one, with open admin endpoints."""
    answers: list[object] = []
    with serving(repository, tmp_path, "--open-admin", "--model", "echo") as second:
        assert [m["name"] for m in second.report["models"]] == ["echo"]
        assert second.state["key"] is None
        assert second.http().get_model_repository_index()
        thread = second.request_in_background(1.5, answers)
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(30) == 0
        thread.join()
        assert answers == [1.5]
        assert second.left_behind() == []
    assert served.infer() == 0.0


def test_a_hung_model_is_killed(repository: Path, tmp_path: Path) -> None:
    answers: list[object] = []
    with serving(repository, tmp_path, "--exit-timeout", "1", "--model", "echo") as served:
        thread = served.request_in_background(600, answers)
        served.process.terminate()
        assert served.process.wait(60) == 4
        thread.join()
        assert isinstance(answers[0], Exception)
        assert served.left_behind() == []
        assert "did not end within" in (tmp_path / "stderr").read_text()


def test_tritonservers_own_exit_timeout_is_reported(repository: Path, tmp_path: Path) -> None:
    """Without clients tritonserver ends at its own exit timeout, before it would be killed."""
    answers: list[object] = []
    with serving(repository, tmp_path, "--exit-timeout", "1", "--model", "echo") as served:
        thread = served.request_in_background(600, answers, timeout=3)
        served.process.terminate()
        code = served.process.wait(60)
        thread.join()
        assert isinstance(answers[0], Exception)
        assert (code, served.left_behind()) == (4, [])
        assert "did not end cleanly (exit status 1)" in (tmp_path / "stderr").read_text()


def test_a_second_signal_ends_at_once(repository: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, "--exit-timeout", "600", "--model", "echo") as served:
        thread = served.request_in_background(600, [])
        served.process.send_signal(signal.SIGINT)
        assert until(lambda: (read_readiness(served.state["status"]) or {}).get("state") == "ending")
        assert served.process.poll() is None
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(60) == 4
        thread.join()
        assert served.left_behind() == []


def test_sigkill_of_the_server_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, "--model", "echo", "--server-restarts", "0") as served:
        psutil.Process(served.report["server_pid"]).kill()
        assert served.process.wait(30) == 3
        assert served.left_behind() == []
        assert "tritonserver ended by itself (killed by SIGKILL)" in (tmp_path / "stderr").read_text()


def test_sigkill_of_tidal_serve_ends_the_server(repository: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, "--exit-timeout", "1", "--model", "echo") as served:
        thread = served.request_in_background(600, [])  # the server ends only by SIGKILL
        served.process.kill()
        served.process.wait()
        state = list((tmp_path / "tidal").glob("*.json"))
        assert until(lambda: set(served.left_behind()) <= {str(path) for path in state}), served.left_behind()
        thread.join()
        # The next command removes the state of the dead process.
        assert served.tidal("models", "status").returncode == 3
        assert served.left_behind() == []


def test_a_model_that_does_not_load_fails_a_strict_start(repository: Path, tmp_path: Path) -> None:
    broken = tmp_path / "models"
    publish(broken, "fine")
    publish(broken, "broken", code="import no_such_module\n")
    environment = environment_in(tmp_path)
    process = subprocess.Popen(
        [*TIDAL, "serve", str(broken), "--strict", *FREE_PORTS],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    at = broken / "broken" / "1" / "model.py"
    expected = (
        f"error: model 'broken' does not load: ModuleNotFoundError: No module named 'no_such_module' at {at}(1)\n"
    )
    assert errors.endswith(expected)
    assert left_behind(process.pid, tmp_path) == []


def test_the_printed_table(repository: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*TIDAL, "serve", str(repository), *FREE_PORTS, "--model", "spare"],
        env=environment_in(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(10)]
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()
    assert re.fullmatch(rf"Triton 2\.\d+\.\d+ \((path|nvidia-pytriton)\) serves {repository}\n", lines[0])
    assert lines[1].split() == ["MODEL", "VERSION", "BACKEND", "STATE"]
    assert lines[2].split()[0::2] == ["spare", "python"]
    assert lines[3].split(maxsplit=3) == ["later", "-", "-", "not published: tidal build SPEC.yaml\n"]
    assert [line.split()[0] for line in lines[4:]] == ["HTTP", "gRPC", "metrics", "status", "admin", "log"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "model repository 'nowhere' is not a folder"),
        (["."], "model repository '.' has no model"),
        (["models", "--model", "eccho"], "model 'eccho' is not in models: did you mean 'echo'?"),
        (["models", "--model", "later"], "model 'later' has no published version: tidal build"),
        (["models", "--http-port", "28999", "--grpc-port", "28999"], "--grpc-port 28999 is given twice"),
        (["models", "--host", "::1"], "--host '::1' is neither an IPv4 address nor a name that has one"),
        (["with space"], "Triton cannot start Python models from '{here}/with space/echo'"),
        (["models", "--host", "192.0.2.1"], "--host 192.0.2.1 --http-port 8000: Cannot assign requested address"),
    ],
)
def test_a_start_that_cannot_succeed_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("models", "with space"):
        publish(tmp_path / name, "echo")
        (tmp_path / name / "later").mkdir()
        (tmp_path / name / "later" / "config.pbtxt").touch()
    monkeypatch.chdir(tmp_path / "run" if arguments[0] == "." else tmp_path)
    answer = tidal_in_process("serve", *arguments, environment=environment_in(tmp_path / "environment"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: " + message.replace("{here}", str(tmp_path)))
    assert len(answer.stderr.splitlines()) == 1


def test_an_option_that_tritonserver_refuses_is_named(repository: Path, tmp_path: Path) -> None:
    answer = tidal("serve", str(repository), *FREE_PORTS, "--", "--nonsense", environment=environment_in(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.endswith("unrecognized option '--nonsense'\n")


def test_a_bad_admin_key_is_refused(repository: Path, tmp_path: Path) -> None:
    environment = {**environment_in(tmp_path), "TIDAL_ADMIN_KEY": "a,b=c:d e"}
    answer = tidal_in_process("serve", str(repository), *FREE_PORTS, environment=environment)
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: TIDAL_ADMIN_KEY is not valid: it must have")
