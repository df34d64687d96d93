"""`tidal serve --access-log` with an invalid target: nothing starts, and the error says what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.serving import environment_in, publish, tidal_in_process


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_log_that_cannot_be_opened(tmp_path: Path, given: str) -> None:
    publish(tmp_path / "models", "echo")
    path = tmp_path / "missing" / "requests.jsonl"
    environment = environment_in(tmp_path / "run")
    arguments = ["serve", str(tmp_path / "models"), "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    if given == "option":
        arguments += ["--access-log", str(path)]
    else:
        environment["TIDAL_ACCESS_LOG"] = str(path)
    ended = tidal_in_process(*arguments, environment=environment)
    assert ended.returncode == 1
    message = " ".join(ended.stderr.split())
    assert "cannot be opened: No such file or directory" in message
    assert "accepted: a file that can be written, or - for standard output" in message
