from __future__ import annotations

import builtins
import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.client.conftest import ProbeServer
from tidal_client.main import build_app

# A busy machine sends late, which these tests do not check.
PATIENT = ("--late-ms", "60000")


def _load(*args: str) -> Any:
    return CliRunner(env={"COLUMNS": "180", "NO_COLOR": "1"}).invoke(build_app(), ["load", *args])


@pytest.mark.server
def test_a_table(url: str) -> None:
    done = _load("probe", "--url", url, "--rate", "200", "--requests", "100", "--slo-ms", "60000", *PATIENT)
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert rows[0][:3] == ["all", "100", "100"]
    assert rows[0][4] == "100.0%"
    assert rows[0][3] == rows[0][5]
    assert all(float(cell) > 0 for cell in rows[0][6:])
    assert rows[1][0] == "all, from send"
    assert float(rows[1][6]) < float(rows[0][6])
    assert "generator: send delay p50" in done.stdout
    assert done.stderr == ""


@pytest.mark.server
def test_json_has_variants_and_errors(server: ProbeServer, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("hi\nerror UNAVAILABLE full\nhello\n")
    mix = ["--mix", "latency_ms=60000:0.7,latency_ms=50000 task=a:0.3"]
    args = ["--url", server.http, "-r", "300", "-n", "90", "--file", str(file), "--output", "label", *mix]
    done = _load("probe", *args, "--json", *PATIENT)
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["model"], found["seed"], found["messages"]) == ("probe", 0, {"UNAVAILABLE": "full"})
    total, variants = found["total"], found["variants"]
    assert (total["requests"], total["answered"], total["within_slo"]) == (90, 60, 60)
    assert total["errors"] == {"UNAVAILABLE": 30}
    assert set(variants) == {"latency_ms=60000", "latency_ms=50000 task=a"}
    assert sum(row["requests"] for row in variants.values()) == 90
    assert set(total["latency_ms"]) == {"mean", "p50", "p98", "p99", "max"}
    assert (found["generator"]["bottleneck"], found["generator"]["warning"]) == (False, "")
    table = _load("probe", *args, *PATIENT)
    assert table.exit_code == 1
    assert [line.split("│")[1:4] for line in table.stdout.splitlines() if "full" in line] == [
        [" UNAVAILABLE ", " 30       ", " full          "]
    ]


@pytest.mark.server
def test_a_late_generator_is_a_warning_and_changes_no_exit_code(server: ProbeServer) -> None:
    args = ("probe", "--url", server.http, "-r", "1e7", "-n", "2000", "--late-ms", "1")
    done = _load(*args, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["generator"]["bottleneck"] is True
    assert done.stderr.startswith("warning: the generator was a bottleneck: ")


@pytest.mark.server
def test_a_trace_at_another_rate(server: ProbeServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("when,size\n" + "".join(f"{1000 + 50 * k},1\n" for k in range(200)))
    options = ("--url", server.http, "--trace", str(trace), "--trace-column", "when", "--json", *PATIENT)
    found = json.loads(_load("probe", *options, "--rate", "100", "--seconds", "1").stdout)
    assert found["total"]["requests"] == 100
    assert found["offered_rate"] == pytest.approx(101, abs=1.5)
    found = json.loads(_load("probe", *options, "--trace-unit", "ms", "--trace-start", "9").stdout)
    assert found["total"]["requests"] == 20
    assert found["offered_rate"] == pytest.approx(20, abs=1.5)
    short = _load("probe", *options, "--rate", "400", "--requests", "300")
    assert short.stderr == "the trace has only 200 of the 300 requested arrivals\n"


@pytest.mark.server
def test_a_picture(server: ProbeServer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    for mix in ("utility=1", "utility=1,latency_ms=50"):
        file = tmp_path / f"{len(mix)}.png"
        done = _load(
            "probe", "--url", server.http, "-r", "100", "-n", "40", "--mix", mix, "--plot", str(file), *PATIENT
        )
        assert done.exit_code == 0, done.output
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.server
def test_progress_is_drawn_on_a_terminal_only(server: ProbeServer) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tidal_client.main", "load", "probe", "--url", server.http, "-r", "50", "-s", "1"]
    env = dict(os.environ, TERM="xterm", COLUMNS="120")
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, stderr=theirs, env=env, timeout=60, check=True)
    os.close(theirs)
    assert "in flight" in os.read(ours, 1 << 16).decode()
    os.close(ours)
    json.loads(done.stdout)


@pytest.mark.server
def test_nothing_is_sent_to_a_model_that_is_not_ready(server: ProbeServer, closed_port: int) -> None:
    done = _load("nope", "--url", server.http, "-r", "10")
    assert done.exit_code == 1
    assert done.stderr == f"model 'nope' is not ready at {server.http}; nothing was sent\n"
    done = _load("probe", "--url", f"grpc://127.0.0.1:{closed_port}", "-r", "10")
    assert done.exit_code == 1
    assert done.stderr.startswith("CONNECTION_FAILED: ")


@pytest.mark.parametrize(
    ("args", "option", "reason"),
    [
        ([], "--rate", "required unless --trace is given"),
        (["-r", "0"], "--rate", "got 0; expected a number above 0"),
        (["-r", "inf"], "--rate", "above 0"),
        (["-r", "x"], "--rate", "valid"),
        (["-r", "5", "-s", "0"], "--seconds", "above 0"),
        (["-r", "5", "-n", "0"], "--requests", "above 0"),
        (["-r", "5", "-n", "5", "-s", "5"], "--requests", "exclude each other"),
        (["-r", "0.001", "-s", "0.001"], "--seconds", "too short for a request"),
        (["-r", "5", "--arrivals", "even"], "--arrivals", "poisson"),
        (["-r", "5", "--arrivals", "bursty", "--burst-factor", "9"], "--burst-factor", "expected 1 to 5"),
        (["-r", "5", "--arrivals", "bursty", "--burst-seconds", "0"], "--burst-seconds", "above 0"),
        (["-r", "5", "--arrivals", "bursty", "--burst-share", "1"], "--burst-share", "between 0 and 1"),
        (["--trace", "/no/file"], "--trace", "cannot be read"),
        (["--trace", "x", "--trace-unit", "h"], "--trace-unit", "us"),
        (["--trace", "x", "--trace-start", "-1"], "--trace-start", "0"),
        (["-r", "5", "--trace-column", "t"], "--trace-column", "requires --trace"),
        (["-r", "5", "--file", "/no/file"], "--file", "cannot be read"),
        (["-r", "5", "--file", "/dev/null", "--ids"], "--ids", "cannot be combined with --file"),
        (["-r", "5", "--lengths", "9-2"], "--lengths", "LOW-HIGH"),
        (["-r", "5", "--tokenizer", "/no/file"], "--tokenizer", "cannot be read"),
        (["-r", "5", "--ids", "--vocabulary", "1"], "--vocabulary", "at least 2"),
        (["-r", "5", "--mix", "speed=1"], "--mix", "unexpected keyword argument 'speed'"),
        (["-r", "5", "--mix", "/no/mix.json"], "--mix", "cannot be read"),
        (["-r", "5", "--slo-ms", "0"], "--slo-ms", "above 0"),
        (["-r", "5", "--url", "ftp://x"], "--url", "grpc://HOST:PORT"),
        (["-r", "5", "--timeout", "0"], "--timeout", "0.001"),
        (["-r", "5", "--seed", "-1"], "--seed", "0"),
        (["-r", "5", "--late-ms", "0"], "--late-ms", "0.001"),
        (["-r", "5", "--plot", "x.doc"], "--plot", "ends in .png"),
        (["-r", "5", "--plot", "/no/folder/x.png"], "--plot", "the folder /no/folder does not exist"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_sent(
    args: list[str], option: str, reason: str, closed_port: int
) -> None:
    done = _load("m", "--url", f"http://127.0.0.1:{closed_port}", *args)
    assert done.exit_code == 2, done.output
    message = " ".join(done.stderr.replace("│", " ").split())
    assert option in message
    assert reason in message


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real_find, real_import = importlib.util.find_spec, builtins.__import__

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "matplotlib" else real_find(name, package)

    def load(name: str, *rest: Any) -> Any:
        if name in ("tokenizers", "yaml"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real_import(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(builtins, "__import__", load)
    (tmp_path / "mix.yaml").write_text("[]")
    for args, remedy in (
        (["--plot", "x.png"], "pip install matplotlib"),
        (["--tokenizer", "x.json"], "pip install tokenizers"),
        (["--mix", str(tmp_path / "mix.yaml")], "pip install pyyaml"),
    ):
        done = _load("m", "-r", "5", *args)
        assert done.exit_code == 2
        assert remedy in " ".join(done.stderr.replace("│", " ").split())


def test_help_is_a_manual() -> None:
    done = _load("--help")
    for part in ("Examples", "Exit codes", "--mix", "--slo-ms", "--trace-column", "--plot", "bottleneck"):
        assert part in done.stdout
