"""NVIDIA's perf_analyzer, the real program, as a client that shares no code with Tidal's."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.arlo.conftest import MAX_LENGTH, Built
from tests.servers import RunningServer, running_server

pytestmark = pytest.mark.server

_WHEEL = "tritonclient==2.51.0"
# Libraries that the program looks for by names of its own, and what nvidia-pytriton calls them.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@pytest.fixture(scope="module")
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The program and the environment that it runs in; downloaded once, and never installed."""
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
            # Renamed into place when it is whole: another run may be doing the same.
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
def tiny(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    built.copy(repository, "tiny")
    with running_server(repository) as running:
        assert running.load_error("tiny") == ""
        yield running


def completed(server: RunningServer) -> int:
    """Requests that the server says it has answered without an error."""
    with urllib.request.urlopen(f"http://{server.http}/v2/models/tiny/stats", timeout=10) as response:
        (stats,) = json.load(response)["model_stats"]
    assert stats["inference_stats"]["fail"]["count"] == 0
    return int(stats["inference_stats"]["success"]["count"])


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_it_drives_a_model(
    tiny: RunningServer,
    perf_analyzer: tuple[Path, dict[str, str]],
    tmp_path: Path,
    protocol: str,
    kind: str,
) -> None:
    program, environment = perf_analyzer
    lengths = (1, 5, 13, 30, MAX_LENGTH - 2)
    if kind == "texts":
        rows = [{"text_input": {"content": [" ".join(["good"] * n)], "shape": [1]}} for n in lengths]
    else:
        rows = [{"input_ids": {"content": [2, *[7] * n, 3], "shape": [n + 2]}} for n in lengths]
    data, report, export = tmp_path / "data.json", tmp_path / "report.csv", tmp_path / "export.json"
    data.write_text(json.dumps({"data": rows}))
    before = completed(tiny)
    # A wide bound of stability: other work on the machine must not fail this.
    command = [str(program), "-m", "tiny", "-i", protocol, "-u", getattr(tiny, protocol), "--input-data", str(data)]
    command += [
        "--concurrency-range",
        "2",
        "-s",
        "900",
        "-p",
        "500",
        "-f",
        str(report),
        "--profile-export-file",
        str(export),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with report.open() as lines:
        (row,) = csv.DictReader(lines)
    assert float(row["Inferences/Second"]) > 0
    (experiment,) = json.loads(export.read_text())["experiments"]
    requests = experiment["requests"]
    assert len(requests) > 0
    assert all(len(each["response_timestamps"]) == 1 for each in requests)
    # The server has answered what the report covers, and what came between and after its windows.
    assert completed(tiny) - before >= len(requests)
