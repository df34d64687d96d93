"""`tidal generate` against the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.flover.served.conftest import Served, run_generate
from tidal_client import Client
from tidal_client.main import build_app

pytestmark = pytest.mark.server


def test_the_prompt_from_an_option_a_file_and_stdin(url: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("the cät", encoding="utf-8")
    with Client(url) as client:
        answer = client.generate("writer", "the cät", max_tokens=20)
    common = ("writer", "--url", url, "-n", "20")
    for done in (
        run_generate(*common, "--text", "the cät"),
        run_generate(*common, "--file", str(file)),
        run_generate(*common, stdin="the cät".encode()),
    ):
        assert done.exit_code == 0, done.output
        assert done.stdout == answer.text + "\n"
        count = f"8 prompt tokens, {answer.generated_tokens} generated tokens, finish reason {answer.finish_reason}"
        assert count in done.stderr
    found = json.loads(run_generate(*common, "-t", "the cät", "--json", "--temperature", "0").stdout)
    assert (found["text"], found["tokens"]) == (answer.text, list(answer.tokens))
    assert 0 < found["first_token_ms"] <= found["milliseconds"]


def test_a_refused_request(url: str) -> None:
    done = run_generate("writer", "--url", url, "-t", "hi", "--top-p", "2", "--json")
    assert done.exit_code == 1
    assert "INVALID_ARG: request option 'top_p'" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "INVALID_ARG"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["writer", "-t", "a", "--file", "x"], "--text and --file exclude each other"),
        (["writer", "--file", "/no/such/file"], "cannot read the prompt"),
        (["writer", "-t", "a", "--url", "ftp://x"], "grpc://HOST:PORT"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_sends_nothing(served: Served, args: list[str], message: str) -> None:
    done = run_generate(*args)
    assert done.exit_code == 2
    assert message.lower() in " ".join(done.stderr.lower().replace("│", " ").split())


def test_infer_names_the_command_for_models_that_stream(url: str) -> None:
    arguments = ["infer", "writer", "--url", url, "--text", "hi", "--text", "there"]
    done = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(build_app(), arguments)
    assert done.exit_code == 1
    assert "doesn't support models with decoupled transaction policy" in done.stderr
    assert "this model streams its responses: use Client.generate or `tidal generate` instead of infer" in done.stderr
    assert done.stderr.endswith("inputs not sent: 1\n")


def load(*args: str) -> Any:
    return CliRunner(env={"COLUMNS": "180", "NO_COLOR": "1"}).invoke(build_app(), ["load", *args])


def test_load_of_generations(url: str) -> None:
    common = ("writer", "--url", url, "--rate", "40", "--requests", "12", "--generate", "--late-ms", "60000")
    mix = ("--mix", "max_tokens=2:0.5,max_tokens=9:0.5", "--lengths", "2-8")
    done = load(*common, *mix, "--json", "--slo-ms", "60000")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    total, variants = found["total"], found["variants"]
    assert (total["requests"], total["answered"], total["within_slo"], total["resent"]) == (12, 12, 12, 0)
    # A text may end before its last token.
    for name, limit in (("max_tokens=2", 2), ("max_tokens=9", 9)):
        row = variants[name]
        assert row["answered"] <= row["generation"]["tokens"] <= limit * row["answered"]
    generation = total["generation"]
    assert generation["tokens"] == sum(row["generation"]["tokens"] for row in variants.values())
    assert generation["tokens_per_second"] == pytest.approx(generation["tokens"] / found["duration_s"])
    assert 0 < generation["first_token_ms"]["mean"] < total["latency_ms"]["mean"]
    assert generation["inter_token_ms"]["p50"] >= 0
    table = load(*common, "--ids", "--vocabulary", "200", "--lengths", "5", "--mix", "max_tokens=3")
    assert table.exit_code == 0, table.output
    (first,) = [line for line in table.stdout.splitlines() if "time to first token" in line]
    cells = [cell.strip() for cell in first.split("│")[1:-1]]
    assert 12 <= int(cells[1]) <= 36
    assert all(float(cell) > 0 for cell in cells[2:])
    assert "per further token" in table.stdout


def test_load_of_generations_counts_failures(served: Served) -> None:
    url = served.url("grpc")
    mix = ("--mix", "top_p=0.5:0.5,top_p=2:0.5")
    done = load("writer", "--url", url, "-r", "50", "-n", "12", "-g", *mix, "--json", "--late-ms", "60000")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["total"]["errors"] == {"INVALID_ARG": found["variants"]["top_p=2"]["requests"]}
    assert "request option 'top_p'" in found["messages"]["INVALID_ARG"]
    assert found["variants"]["top_p=2"]["generation"]["first_token_ms"] is None


def test_load_without_generate_is_refused(served: Served) -> None:
    url = served.url("grpc")
    done = load("writer", "--url", url, "-r", "5", "-n", "2")
    assert done.exit_code == 2
    inputs = "text_input, input_ids, messages, tools, stream"
    assert done.stderr == f"model 'writer' has the inputs {inputs}: give --generate; nothing was sent\n"


def test_generate_with_stream_names_generate_stream(served: Served) -> None:
    def message() -> str:
        status, body = served.post("writer", "generate", text_input="hi", stream=True, max_tokens=100)
        assert status == 200
        return str(json.loads(body).get("error", ""))

    # On a busy machine all tokens may be sent in one part, which `generate` can answer.
    assert any("use generate stream" in message() for _ in range(5))
