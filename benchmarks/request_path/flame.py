"""Flame graphs of a model's process under load, by py-spy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.report import progress
from benchmarks.request_path.rounds import Bench, Side
from tidal.server.stubs import live_stubs

_IN_FLIGHT = 64
_SECONDS = 3
_RATE_HZ = 250
# Time in which py-spy attaches, and in which it writes.
_START_S, _WRITE_S = 2.0, 30.0


def record(bench: Bench, side: Side, file: Path) -> Path | None:
    """Write an SVG of the model's process under 64 requests in flight; None without py-spy on PATH.

    Args:
        bench: Benchmark that sends the load.
        side: Model to record.
        file: File to write.
    """
    program, requests = shutil.which("py-spy"), side.make(0)
    if program is None:
        progress("no flame graph: py-spy is not on PATH")
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    (pid, *_) = [stub.pid for stub in live_stubs(side.server.state.server_pid) if stub.model == requests.model]
    options = [
        "--duration",
        str(_SECONDS),
        "--rate",
        str(_RATE_HZ),
        "--threads",
        "--nonblocking",
        "--output",
        str(file),
    ]
    with subprocess.Popen(
        [program, "record", "--pid", str(pid), *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as recording:
        bench.generator.run(side.server.state.grpc, requests, concurrency=_IN_FLIGHT, seconds=_SECONDS + _START_S)
        try:
            errors = recording.communicate(timeout=_WRITE_S)[1]
        except subprocess.TimeoutExpired:
            recording.kill()
            errors = f"py-spy wrote nothing within {_WRITE_S} s"
            recording.wait()
    if recording.returncode:
        progress(f"no flame graph of {requests.model}: {errors.strip()[-300:]}")
        return None
    return file
