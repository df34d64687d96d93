"""`tidal embed` with a stand-in for an embedding model on a real tritonserver."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from testing.waiting import until
from tests.client.conftest import ProbeServer
from tests.client.embeddings import embedding_of
from tidal_client import Client, InvalidArgument, Unavailable
from tidal_client.bulk.run import Paths, embed_file
from tidal_client.bulk.state import BulkSettings
from tidal_client.bulk.texts import open_texts, scan
from tidal_client.main import build_app

_NO_ARROW = "pyarrow is not installed: pip install 'tidal[parquet]'"

pytestmark = pytest.mark.server

TEXTS = [f"{number} {'x' * (number * 7 % 50)} 🌊" for number in range(101)]


def _embed(*args: object) -> Any:
    environment = {"COLUMNS": "160", "NO_COLOR": "1"}
    return CliRunner(env=environment).invoke(build_app(), ["embed", *map(str, args)])


def _expected(texts: list[str]) -> Any:
    return np.stack([embedding_of(text) for text in texts])


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    return file


def test_lines_become_rows_in_their_order(url: str, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    done = _embed(lines, "--model", "embedder", "--out", out, "--url", url)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(out), _expected(TEXTS))
    assert done.stdout.startswith(f"{out}: 101 texts, 16 dimensions, float32, 6.6 kB, in ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "texts.txt"]
    again = _embed(lines, "--model", "embedder", "--out", out, "--url", url)
    assert (again.exit_code, "exists; delete it or give another name" in _plain(again.stderr)) == (2, True)


def test_a_terminal_shows_a_bar(url: str, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr("tidal_client.commands.embed.Console", lambda stderr: terminal)
    done = _embed(lines, "--model", "embedder", "--out", tmp_path / "out.npy", "--url", url)
    assert done.exit_code == 0, done.output
    assert "101/101" in _plain(shown.getvalue())
    assert "━" in shown.getvalue()


def test_options_determine_the_vectors(server: ProbeServer, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    options = ("--dtype", "int8", "--prompt", "query: ", "--dimensions", "4", "--concurrency", "2")
    done = _embed(lines, "-m", "embedder", "-o", out, *options, "--url", server.http)
    assert done.exit_code == 0, done.output
    expected = np.stack([np.round(embedding_of(f"query: {text}", 4) * 127).astype(np.int8) for text in TEXTS])
    np.testing.assert_array_equal(np.load(out), expected)
    out.unlink()
    assert _embed(lines, "-m", "embedder", "-o", out, "--dtype", "binary", "--url", server.http).exit_code == 0
    np.testing.assert_array_equal(np.load(out), np.packbits(_expected(TEXTS) > 0, axis=1))
    out.unlink()
    short = ("--dtype", "binary", "--dimensions", "11")
    done = _embed(lines, "-m", "embedder", "-o", out, *short, "--url", server.http)
    assert done.stdout.startswith(f"{out}: 101 texts, 11 dimensions, binary, ")
    assert np.load(out).shape == (101, 2)


def test_fields_and_columns_are_read(server: ProbeServer, tmp_path: Path) -> None:
    texts = ['a "quoted" text, with commas', "two\nlines", "🌊"]
    files = {name: tmp_path / f"in.{name}" for name in ("jsonl", "csv", "tsv")}
    files["jsonl"].write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in texts))
    for name in ("csv", "tsv"):
        with files[name].open("w", newline="") as file:
            rows = csv.writer(file, delimiter="\t" if name == "tsv" else ",")
            rows.writerows([["id", "body"], *([str(i), text] for i, text in enumerate(texts))])
    for name, file in files.items():
        out = tmp_path / f"{name}.npy"
        done = _embed(file, "--field", "body", "-m", "embedder", "-o", out, "--url", server.http)
        assert done.exit_code == 0, done.output
        np.testing.assert_array_equal(np.load(out), _expected(texts))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.jsonl", '\n{"text": "a"}\n\n  \r\n{"text": "b"}\n{"text": "c"}\n\n'),
        ("in.csv", "\nid,text\n\n1,a\n\r\n2,b\n3,c\n\n"),
    ],
)
def test_blank_lines_of_files_with_fields_are_skipped(
    server: ProbeServer, tmp_path: Path, name: str, content: str
) -> None:
    file, out = tmp_path / name, tmp_path / "out.npy"
    file.write_bytes(content.encode())
    done = _embed(file, "-m", "embedder", "-o", out, "--url", server.http)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(out), _expected(["a", "b", "c"]))


def test_lines_are_named_by_their_number_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a"}\n\n\n{"text": "b"}\n{"text": " "}\n')
    texts = open_texts(file)
    assert [texts.name(index) for index in range(3)] == ["line 1", "line 4", "line 5"]
    with pytest.raises(InvalidArgument, match="line 5: the text is empty"):
        scan(texts)


def test_parquet_in_and_out(server: ProbeServer, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason=_NO_ARROW)
    parquet = pytest.importorskip("pyarrow.parquet", reason=_NO_ARROW)
    file, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(arrow.table({"id": list(range(len(TEXTS))), "body": TEXTS}), file, row_group_size=10)
    done = _embed(file, "--field", "body", "-m", "embedder", "-o", out, "--url", server.http)
    assert done.exit_code == 0, done.output
    table = parquet.read_table(out)
    assert table.column("text").to_pylist() == TEXTS
    assert table.schema.field("embedding").type == arrow.list_(arrow.float32(), 16)
    np.testing.assert_array_equal(np.array(table.column("embedding").to_pylist(), np.float32), _expected(TEXTS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


@pytest.mark.parametrize("after", [1, 5, 12])
def test_an_interrupted_run_continues_exactly(
    server: ProbeServer, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    paths, texts = Paths(tmp_path / "out.npy"), open_texts(lines)
    found = scan(texts)
    settings = BulkSettings(found.texts, found.digest, "embedder", ("1",), None, None, "float32")
    written = list[int]()

    def interrupt(count: int) -> None:
        written.append(count)
        if len(written) == after:
            raise KeyboardInterrupt

    with Client(server.http) as client, pytest.raises(KeyboardInterrupt):
        embed_file(client, texts, settings, paths, concurrency=3, report=interrupt)
    assert (paths.partial.exists(), paths.state.exists(), paths.out.exists()) == (True, True, False)
    partial = np.load(paths.partial)
    reported, sent = list[int](), list[str]()

    def embed(model: str, texts: list[str], **options: Any) -> Any:
        sent.extend(texts)
        return Client.embed(client, model, texts, **options)

    with Client(server.http) as client:
        monkeypatch.setattr(client, "embed", embed)
        embed_file(client, texts, settings, paths, concurrency=3, report=reported.append)
    # Only what was not written is sent, and what was written is not written again.
    assert len(sent) == len(set(sent)) == len(TEXTS) - sum(written)
    assert sum(reported) == len(TEXTS)
    array = np.load(paths.out)
    np.testing.assert_array_equal(array, _expected(TEXTS))
    kept = partial.any(axis=1)
    assert kept.sum() == sum(written)
    np.testing.assert_array_equal(array[kept], partial[kept])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "texts.txt"]


def test_a_run_continues_with_equal_settings_only(server: ProbeServer, lines: Path, tmp_path: Path) -> None:
    paths, texts = Paths(tmp_path / "out.npy"), open_texts(lines)
    found = scan(texts)
    settings = BulkSettings(found.texts, found.digest, "embedder", ("1",), None, None, "float32")

    def interrupt(_count: int) -> None:
        raise KeyboardInterrupt

    with Client(server.http) as client, pytest.raises(KeyboardInterrupt):
        embed_file(client, texts, settings, paths, concurrency=1, report=interrupt)
    command = (lines, "-m", "embedder", "-o", paths.out, "--url", server.http)
    refused = _embed(*command, "--prompt", "other")
    assert refused.exit_code == 1
    assert "an interrupted run differs in prompt: None then, 'other' now; delete it to start again" in refused.stderr
    assert "differs in task: None then, 'other' now" in _embed(*command, "--task", "other").stderr
    lines.write_text(lines.read_text().replace("7 ", "8 ", 1))
    assert "an interrupted run differs in content of the input; delete it" in _embed(*command).stderr
    paths.state.write_text("{}")
    assert "not the state of a run" in _embed(*command).stderr
    paths.state.unlink()
    assert _embed(*command).exit_code == 0


def test_a_signal_ends_a_run_that_the_same_command_continues(server: ProbeServer, tmp_path: Path) -> None:
    texts = [*(f"text {number}" for number in range(89)), "hold"]  # the shortest is in the last of 12 requests
    file, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    file.write_text("\n".join(texts))
    server.rows_log.write_text("")
    release = server.rows_log.with_name("release")
    # Shells in the background ignore SIGINT, and so do their children.
    start = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "runpy.run_module('tidal_client.main', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", start, "embed", str(file), "-m", "embedder", "-o", str(out)]
    # One request at a time: else the held one may be executed before others, which then wait for it.
    command += ["--url", server.http, "--concurrency", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert until(lambda: server.rows_log.read_text().count("\n") >= 12)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert errors.splitlines()[0] == "interrupted"
    assert "of 90 texts are written; the same command continues" in errors
    release.touch()
    try:
        done = _embed(file, "-m", "embedder", "-o", out, "--url", server.http)
    finally:
        release.unlink()
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(out), _expected(texts))


def test_a_failed_request_leaves_what_was_written(server: ProbeServer, tmp_path: Path) -> None:
    file, paths = tmp_path / "texts.txt", Paths(tmp_path / "out.npy")
    file.write_text("\n".join(["much longer texts are sent first"] * 20 + ["unavailable"]))
    texts = open_texts(file)
    settings = BulkSettings(21, scan(texts).digest, "embedder", ("1",), None, None, "float32")
    with Client(server.http) as client, pytest.raises(Unavailable):
        embed_file(client, texts, settings, paths, concurrency=1, report=lambda _: None)
    assert json.loads(paths.state.read_text())["complete"] == 2
    file.write_text("\n".join(["fine"] * 20 + ["refuse"]))
    refused = _embed(file, "-m", "embedder", "-o", tmp_path / "other.npy", "--url", server.http)
    assert (refused.exit_code, "INVALID_ARG: line 21 is empty; accepted: a text" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "content", "field", "message"),
    [
        ("a.txt", b"good\nbad \xff\n", None, "line 2: not valid UTF-8 at byte 4"),
        ("a.txt", b"good\n\n  \nmore\n", None, "line 2 and 1 more: the text is empty; remove it"),
        ("a.txt", b"", None, "the file is empty; expected one text per line or row"),
        (
            "a.txt",
            b"good",
            "text",
            "a.txt is read as lines of text; a field requires a file that ends in .jsonl, .csv, .tsv or .parquet",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text"', None, "line 2: not valid JSON"),
        ("a.jsonl", b'{"title": "a", "id": 3}', None, "line 1: no field 'text'; its fields are title, id"),
        ("a.jsonl", b"[1]", None, "line 1: no field 'text'"),
        ("a.jsonl", b'{"id": 3}', "id", "line 1: 'id' is int; expected a text"),
        ("a.csv", b"title,id\na,3", None, "no column 'text'; its columns are title, id"),
        ("a.csv", b"id,text\n1,a\n2", None, "row 2: 1 columns; expected 2"),
        ("a.csv", b"text\n\xff", None, "cannot be read"),
        ("a.csv", b"id,text\n\n1,a\n2,\n", None, "row 2: the text is empty"),
        ("a.jsonl", b"\n\n", None, "the file is empty"),
        ("a.parquet", b"no", None, "cannot be read"),
    ],
)
def test_a_text_that_cannot_be_sent_is_named_before_anything_is_sent(
    tmp_path: Path, closed_port: int, name: str, content: bytes, field: str | None, message: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason=_NO_ARROW)
    file = tmp_path / name
    file.write_bytes(content)
    option = [] if field is None else ["--field", field]
    done = _embed(file, *option, "-m", "m", "-o", tmp_path / "out.npy", "--url", f"http://127.0.0.1:{closed_port}")
    assert done.exit_code == 2, done.output
    assert message in _plain(done.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "o.txt"], "expected a name that ends in .npy or .parquet"),
        (["--out", "/no/such/folder/o.npy"], "the folder /no/such/folder does not exist"),
        (["--out", "o.npy", "--dtype", "float23"], "got 'float23'; did you mean 'float32'?"),
        (["--out", "o.npy", "--concurrency", "0"], "--concurrency"),
        (["--out", "o.npy", "--url", "ftp://x"], "grpc://HOST:PORT"),
    ],
)
def test_wrong_usage_sends_nothing(lines: Path, options: list[str], message: str) -> None:
    done = _embed(lines, "-m", "m", *options)
    assert done.exit_code == 2, done.output
    assert message in _plain(done.stderr)


def test_without_a_server_the_error_says_so(lines: Path, tmp_path: Path, closed_port: int) -> None:
    paths, texts = Paths(tmp_path / "out.npy"), open_texts(lines)
    settings = BulkSettings(101, "", "m", ("1",), None, None, "float32")
    with Client(f"http://127.0.0.1:{closed_port}") as client, pytest.raises(ConnectionError):
        embed_file(client, texts, settings, paths, concurrency=1, report=lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_an_array_without_its_state_is_written_again_and_one_that_is_lost_is_named(
    server: ProbeServer, lines: Path, tmp_path: Path
) -> None:
    paths, texts = Paths(tmp_path / "out.npy"), open_texts(lines)
    settings = BulkSettings(101, scan(texts).digest, "embedder", ("1",), None, None, "float32")
    paths.state.write_text(json.dumps({"settings": {**_as_dict(settings)}, "max_rows": 8, "complete": 1, "ahead": [3]}))
    with (
        Client(server.http) as client,
        pytest.raises(InvalidArgument, match="partial: cannot continue with it"),
    ):
        embed_file(client, texts, settings, paths, concurrency=1, report=lambda _: None)
    np.save(tmp_path / "short.npy", np.zeros((3, 16), np.float32))
    (tmp_path / "short.npy").rename(paths.partial)
    with Client(server.http) as client, pytest.raises(InvalidArgument, match=r"has shape \[3, 16\]; expected 101 rows"):
        embed_file(client, texts, settings, paths, concurrency=1, report=lambda _: None)
    paths.state.unlink()
    with Client(server.http) as client:
        assert embed_file(client, texts, settings, paths, concurrency=1, report=lambda _: None) == (101, 16)


def _as_dict(settings: BulkSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in BulkSettings.__slots__}


def _plain(text: str) -> str:
    return " ".join(text.replace("│", " ").split())
