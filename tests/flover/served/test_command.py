"""`tidal generate` against the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.flover.served.conftest import Served
from tidal_client import Client
from tidal_client.main import build_app

pytestmark = pytest.mark.server


def run(*args: str, stdin: bytes | None = None) -> Any:
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(build_app(), ["generate", *args], input=stdin)


def test_a_text_from_anywhere(url: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("the cät", encoding="utf-8")
    with Client(url) as client:
        answer = client.generate("writer", "the cät", max_tokens=20)
    common = ("writer", "--url", url, "-n", "20")
    for done in (
        run(*common, "--text", "the cät"),
        run(*common, "--file", str(file)),
        run(*common, stdin="the cät".encode()),
    ):
        assert done.exit_code == 0, done.output
        assert done.stdout == answer.text + "\n"
        count = f"{answer.generated_tokens} tokens behind 8, ended by {answer.finish_reason}"
        assert count in done.stderr
    found = json.loads(run(*common, "-t", "the cät", "--json", "--temperature", "0").stdout)
    assert (found["text"], found["tokens"]) == (answer.text, list(answer.tokens))
    assert 0 < found["first_token_ms"] <= found["milliseconds"]


def test_a_refusal(url: str) -> None:
    done = run("writer", "--url", url, "-t", "hi", "--top-p", "2", "--json")
    assert done.exit_code == 1
    assert "INVALID_ARG: request option 'top_p'" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "INVALID_ARG"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["writer", "-t", "a", "--file", "x"], "--text or --file, not both"),
        (["writer", "--file", "/no/such/file"], "cannot read the text"),
        (["writer", "-t", "a", "--url", "ftp://x"], "grpc://HOST:PORT"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_sends_nothing(served: Served, args: list[str], said: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert said.lower() in " ".join(done.stderr.lower().replace("│", " ").split())
