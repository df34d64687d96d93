"""The commands of pods, as in Kubernetes: a head and a node that run until a signal, with a given secret."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from testing.serving import TIDAL, serving, tidal

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
]


def started(environment: dict[str, str], *words: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A command of `tidal cluster` that goes on, and what it printed when it had started."""
    command = subprocess.Popen(
        [*TIDAL, "cluster", *words, "--block", "--json"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    line = command.stdout.readline()
    assert line, command.wait(60)
    return command, json.loads(line)


def test_a_head_and_a_node_run_until_a_signal(partitioned: Path, tmp_path: Path) -> None:
    repository, token = tmp_path / "models", tmp_path / "token"
    shutil.copytree(partitioned, repository)
    token.write_text("0123456789abcdef\n")  # a file that an editor ended with a line break
    with serving(repository, tmp_path / "run") as server:
        head, facts = started(server.environment, "start", "--port", "0", "--token-file", str(token))
        try:
            address = f"localhost:{facts['address'].rpartition(':')[2]}"  # a name, as that of a Service
            words = ["join", address, "--host", "127.0.0.1", "--name", "pod", "--token-file", str(token)]
            for _ in range(2):  # a container that is started again joins again
                node, found = started(server.environment, *words)
                assert (found["name"], found["token_file"]) == ("pod", str(token))
                drained = tidal("cluster", "drain", "pod", environment=server.environment)
                assert (drained.returncode, "last" in drained.stderr) == (1, True), drained.stderr
                node.terminate()
                assert node.wait(60) == 0
            head.terminate()
            assert head.wait(60) == 0
        finally:
            head.kill()
        folder = Path(server.environment["XDG_RUNTIME_DIR"]) / "tidal" / "cluster"
        assert list(folder.glob("*.json")) == []
        assert token.exists()
