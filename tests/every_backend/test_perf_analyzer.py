"""Every command line of docs/how-to/measure-with-perf-analyzer.md, run as printed with NVIDIA's program."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shlex
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kept import cache_folder
from testing.perf_analyzer import NoPerfAnalyzer, PerfAnalyzer, fetch
from testing.servers import RunningServer
from tests.every_backend.conftest import KEY, PAGE, block
from tests.otas.photos import encoded, photo

pytestmark = pytest.mark.server

COMMANDS = re.findall(r"^perf_analyzer (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def perf_analyzer() -> PerfAnalyzer:
    try:
        return fetch(cache_folder())
    except NoPerfAnalyzer as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the input files of the page."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("texts", "ids", "prompts", "whole"):
        (folder / f"{name}.json").write_text(block(f"`{name}.json`"))
    (folder / "images.py").write_text(block("This writes `images.json`"))
    (folder / "cat.jpg").write_bytes(encoded(photo(50, 40), "JPEG"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["images.py", "cat.jpg"])
        runpy.run_path("images.py")
    return folder


def counts(server: RunningServer, model: str) -> tuple[int, int]:
    """Numbers of successful and failed requests of a model, as counted by the server."""
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{model}/stats", timeout=10) as response:
        (stats,) = json.load(response)["model_stats"]
    found: Any = [stats["inference_stats"][name].get("count", 0) for name in ("success", "fail")]
    return int(found[0]), int(found[1])


def answered(export: Path) -> int:
    """Number of requests of a run; each has to have responses."""
    # It contains the inputs as sent, including images.
    content = export.read_text(encoding="latin-1")
    times = re.findall(r'"response_timestamps":\[([\d,]*)\]', content)
    assert all(times)
    return len(times)


def test_the_page_has_a_command_for_every_backend() -> None:
    models = {shlex.split(command)[1] for command in COMMANDS}
    assert models == {"intents", "intents_texts", "encoder", "intents_cascade", "digits", "writer"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page(
    server: RunningServer,
    perf_analyzer: PerfAnalyzer,
    inputs: Path,
    tmp_path: Path,
    command: str,
) -> None:
    for address, own in (("localhost:8001", server.grpc), ("localhost:8000", server.http), ("$TIDAL_ADMIN_KEY", KEY)):
        command = command.replace(address, own)
    arguments = shlex.split(command)
    model, report, export = arguments[1], tmp_path / "report.csv", tmp_path / "export.json"
    if "--profile-export-file" not in arguments:
        arguments += ["--profile-export-file", str(export)]
    # A wide bound for stability: other load on the machine must not fail the test.
    arguments += ["-s", "999", "-p", "300", "-f", str(report)]
    # Windows of a time alone may have no request in them.
    arguments += ["--measurement-mode", "count_windows", "--measurement-request-count", "10"]
    before = counts(server, model)
    done = perf_analyzer.run(arguments, inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    with report.open() as lines:
        rows = list(csv.DictReader(lines))
    assert all(float(row["Inferences/Second"]) > 0 for row in rows)
    # The program's export is sometimes empty after a run that succeeded: the server's own count says what it sent.
    requests = answered(export if export.exists() else inputs / "generations.json")
    after = counts(server, model)
    assert after[0] - before[0] >= max(requests, 1)
    assert after[1] == before[1]
