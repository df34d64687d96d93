from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.client.conftest import ProbeServer
from tidal_client.main import build_app

pytestmark = pytest.mark.server


def _infer(*args: str, stdin: str | bytes | None = None) -> Any:
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(build_app(), ["infer", *args], input=stdin)


def test_a_table_of_answers(url: str) -> None:
    done = _infer("probe", "--url", url, "--text", "hi [bold]", "-t", "a text that is rather long")
    assert done.exit_code == 0, done.output
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    assert [cell.strip() for cell in rows[0][1:5]] == ["hi [bold]", "short", "0.881", "16"]
    assert [cell.strip() for cell in rows[1][1:5]] == ["a text that is rather long", "long", "1.000", "32"]
    assert float(rows[0][5]) > 0
    # Other outputs that are short texts.
    assert [cell.strip() for cell in done.stdout.splitlines()[1].split("┃")[5:-1]] == ["ms", "asked", "echo"]
    assert rows[0][7].strip() == "hi [bold]|"


def test_json_carries_the_whole_answer(url: str) -> None:
    done = _infer("probe", "--url", url, "-t", "hé", "-p", "you", "--json", "--latency-ms", "70", "--task", "t")
    found = json.loads(done.stdout)
    assert (found["text"], found["pair"], found["label"], found["max_length"]) == ("hé", "you", "short", 16)
    assert found["logits"] == [5.0, -5.0]
    assert len(found["probabilities"]) == 2
    assert found["milliseconds"] > 0
    assert found["outputs"]["echo"] == ["hé|you"]
    assert found["outputs"]["rows"] == [1]
    parameters = json.loads(found["outputs"]["asked"][0])["parameters"]
    assert (parameters["latency_ms"], parameters["task"]) == (70.0, "t")


def test_lines_of_a_file_and_of_standard_input(server: ProbeServer, tmp_path: Path) -> None:
    lines = "erste Zeile\r\nzwei\u2028te\n\nvierte"
    file = tmp_path / "lines.txt"
    file.write_bytes(lines.encode())
    from_file = _infer("probe", "--url", server.grpc, "--file", str(file), "--json")
    from_stdin = _infer("probe", "--url", server.grpc, "--json", stdin=lines.encode())
    for done in (from_file, from_stdin):
        assert done.exit_code == 0, done.output
        texts = [json.loads(line)["text"] for line in done.stdout.splitlines()]
        assert texts == ["erste Zeile", "zwei\u2028te", "", "vierte"]


def test_only_the_wanted_outputs(server: ProbeServer) -> None:
    done = _infer("probe", "--url", server.grpc, "-t", "hi", "-o", "label", "-o", "rows", "--json")
    found = json.loads(done.stdout)
    assert (found["label"], found["logits"], found["outputs"]) == ("short", None, {"rows": [1]})


def test_one_refused_text_does_not_affect_the_others(url: str) -> None:
    texts = ["-t", "one", "-t", "error UNAVAILABLE the queue is full", "-t", "three"]
    done = _infer("probe", "--url", url, *texts, "--json")
    assert done.exit_code == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each.get("label") for each in found] == ["short", None, "short"]
    assert found[1]["error"] == {"code": "UNAVAILABLE", "message": "the queue is full"}
    assert done.stderr == "text 2 of 3: UNAVAILABLE: the queue is full\n"
    table = _infer("probe", "--url", url, *texts)
    assert table.exit_code == 1
    assert "UNAVAILABLE" in table.stdout


def test_an_error_common_to_all_texts_is_printed_once(server: ProbeServer, closed_port: int) -> None:
    texts = ["-t", "one", "-t", "two", "-t", "three"]
    done = _infer("nope", "--url", server.http, *texts)
    assert done.exit_code == 1
    assert "text 1 of 3: NOT_FOUND" in done.stderr
    assert done.stderr.endswith("inputs not sent: 2\n")
    done = _infer("probe", "--url", f"grpc://127.0.0.1:{closed_port}", *texts)
    assert done.exit_code == 1
    assert "text 1 of 3: CONNECTION_FAILED: no connection to grpc://127.0.0.1" in done.stderr
    done = _infer("probe", "--url", server.grpc, "-t", "sleep 2", "-t", "hi", "--timeout", "0.3")
    assert done.exit_code == 1
    assert "DEADLINE_EXCEEDED: no answer" in done.stderr


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (["probe", "-t", "a", "-p", "b", "-p", "c"], None, "got 2 for 1 texts; expected one per text"),
        (["probe", "-t", "a", "--url", "ftp://x"], None, "grpc://HOST:PORT"),
        (["probe", "-t", "a", "--file", "x"], None, "--text and --file exclude each other"),
        (["probe", "--file", "/no/such/file"], None, "cannot read the texts"),
        (["probe"], b"", "the input has no text"),
        (["probe"], b"\xff\xfe", "cannot read the texts"),
        (["probe", "-t", "a", "--timeout", "0"], None, "--timeout"),
        ([], None, "Missing argument"),
    ],
)
def test_wrong_usage_sends_nothing(args: list[str], stdin: bytes | None, message: str) -> None:
    done = _infer(*args, stdin=stdin)
    assert done.exit_code == 2
    assert message.lower() in " ".join(done.stderr.lower().replace("│", " ").split())


def test_help_is_a_manual() -> None:
    done = _infer("--help")
    for part in ("Examples", "Exit codes", "--latency-ms", "--json", "standard input"):
        assert part in done.stdout


def _cells(done: Any) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "│"]


# Tables of models that do not classify: arguments, and the cells without the latency.
_TABLES = {
    "embedder": (["-t", "a", "--dimensions", "1"], [["a", "1", "1", "-1"]]),
    "marker": (
        ["-t", "Oslo 🌊 Lima", "-t", "none"],
        [
            ["Oslo 🌊 Lima", "Oslo", "NAME", "0.500", "0", "4"],
            ["", "Lima", "NAME", "0.500", "7", "11"],
            ["none", *[""] * 5],
        ],
    ),
    "answerer": (
        ["-t", "Lima or Oslonia", "-p", "Oslonia and Lima", "--top-k", "2"],
        [["Lima or Oslonia | Oslonia and Lima", "Oslonia", "0.070", "0", "7"], ["", "Lima", "0.040", "12", "16"]],
    ),
    "filler": (["-t", "a [MASK]", "--top-k", "1"], [["a [MASK]", "1", "0", "0.500"]]),
    "splade": (["-t", "ab"], [["ab", "2", "98: 49, 97: 48.5"]]),
    "scorer": (["-t", "a", "-p", "four"], [["a | four", "4.0000"]]),
    "labeler": (["-t", "four or", "--threshold", "0.3"], [["four or", "most", "0.500", ""]]),
}


@pytest.mark.parametrize("model", _TABLES)
def test_each_kind_of_model_has_its_table(server: ProbeServer, model: str) -> None:
    arguments, expected = _TABLES[model]
    done = _infer(model, "--url", server.grpc, *arguments)
    assert done.exit_code == 0, done.output
    rows = _cells(done)
    if model == "labeler":
        assert rows[0].pop() == "four"
    assert [row[:-1] for row in rows] == expected
    assert float(rows[0][-1]) > 0


def test_each_kind_of_model_has_its_json(server: ProbeServer) -> None:
    def only(model: str, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_infer(model, "--url", server.grpc, "--json", *arguments).stdout)
        assert found["milliseconds"] > 0
        return found

    assert only("embedder", "-t", "a", "--dimensions", "1")["embedding"] == [-1.0]
    entity = {"label": "NAME", "score": 0.5, "start": 2, "end": 6, "text": "Lima"}
    assert only("marker", "-t", "a Lima")["entities"] == [entity]
    answer = {"text": "Lima", "score": 0.04, "start": 3, "end": 7}
    assert only("answerer", "-t", "Lima", "-p", "to Lima")["answers"] == [answer]
    assert only("filler", "-t", "[MASK]")["predictions"][0][0] == {"token": "0", "token_id": 0, "score": 0.5}
    assert only("splade", "-t", "a")["weights"] == [48.5]
    assert only("scorer", "-t", "a", "-p", "four")["score"] == 4.0
    assert only("labeler", "-t", "considerable or")["labels"] == ["considerable"]


def test_documents_are_ranked_for_a_query(url: str, tmp_path: Path) -> None:
    file = tmp_path / "documents.txt"
    file.write_text("two\n[bold] three\na\n")
    done = _infer("scorer", "--url", url, "--query", "q [red]", "--file", str(file))
    assert done.exit_code == 0, done.output
    assert "q [red] (" in done.stdout
    ranked = [["1", "12.0000", "1", "[bold] three"], ["2", "3.0000", "0", "two"], ["3", "1.0000", "2", "a"]]
    assert _cells(done) == ranked
    found = _infer("scorer", "--url", url, "--query", "q", "-t", "a", "-t", "bb", "--json").stdout.splitlines()
    assert json.loads(found[0]) == {"query": "q", "document": "bb", "index": 1, "score": 2.0}
    refused = _infer("scorer", "--url", url, "--query", "q", "-t", "refuse")
    assert (refused.exit_code, refused.stderr) == (1, "INVALID_ARG: documents[0] is empty; accepted: a text\n")
    wrong = _infer("scorer", "--url", url, "--query", "q", "-t", "a", "-p", "b")
    assert (wrong.exit_code, "cannot be combined" in wrong.stderr) == (2, True)
