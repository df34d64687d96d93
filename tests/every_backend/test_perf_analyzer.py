"""Every command line of docs/how-to/measure-with-perf-analyzer.md, run as printed with NVIDIA's program."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from testing.servers import RunningServer
from tests.every_backend.conftest import KEY, PAGE, block
from tests.otas.test_images import encoded, photo

pytestmark = pytest.mark.server

_WHEEL = "tritonclient==2.51.0"
# Names of libraries that the program loads, and their names in nvidia-pytriton.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
COMMANDS = re.findall(r"^perf_analyzer (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The program and its environment; downloaded once, not installed."""
    cache = Path(os.environ.get("TIDAL_CACHE", Path.home() / ".cache" / "tidal")) / "perf_analyzer" / _WHEEL
    program = cache / "perf_analyzer"
    if not program.exists():
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), _WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            pytest.skip(f"{_WHEEL}, which carries perf_analyzer, cannot be downloaded: {done.stderr.strip()[-300:]}")
        cache.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            entry = next(name for name in wheel.namelist() if name.endswith("/bin/perf_analyzer"))
            # Moved into place when it is complete: another run may download it, too.
            partial = cache / f"partial-{os.getpid()}"
            partial.write_bytes(wheel.read(entry))
        partial.chmod(0o755)
        partial.rename(program)
    libraries = tmp_path_factory.mktemp("libraries")
    bundled = Path(str(distribution("nvidia-pytriton").locate_file("nvidia_pytriton.libs")))
    for name, pattern in _LIBRARIES.items():
        (libraries / name).symlink_to(next(bundled.glob(pattern)))
    return program, dict(os.environ, LD_LIBRARY_PATH=str(libraries))


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
    perf_analyzer: tuple[Path, dict[str, str]],
    inputs: Path,
    tmp_path: Path,
    command: str,
) -> None:
    program, environment = perf_analyzer
    for address, own in (("localhost:8001", server.grpc), ("localhost:8000", server.http), ("$TIDAL_ADMIN_KEY", KEY)):
        command = command.replace(address, own)
    arguments = shlex.split(command)
    model, report, export = arguments[1], tmp_path / "report.csv", tmp_path / "export.json"
    if "--profile-export-file" not in arguments:
        arguments += ["--profile-export-file", str(export)]
    # A wide bound for stability: other load on the machine must not fail the test.
    arguments += ["-s", "999", "-p", "300", "-f", str(report)]
    before = counts(server, model)
    done = subprocess.run(
        [str(program), *arguments],
        env=environment,
        cwd=inputs,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with report.open() as lines:
        rows = list(csv.DictReader(lines))
    assert all(float(row["Inferences/Second"]) > 0 for row in rows)
    requests = answered(export if export.exists() else inputs / "generations.json")
    assert requests > 0
    after = counts(server, model)
    assert after[0] - before[0] >= requests
    assert after[1] == before[1]
