"""Processes of the peers: start, wait until they serve, CPU time, batch counts, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from benchmarks.encoders.systems import Program
from benchmarks.environments import python

# Ray needs about 20 s on an idle machine, infinity with a compiled model 60.
_START_S = 240.0
_STOP_S = 15.0
_POLL_S = 0.1
# Characters of a program's output that are the reason for its end.
_SHOWN = 300
# Nothing may be downloaded or reported to anybody.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else it writes a token into the home folder
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}
_SERVING = Path(__file__).with_name("serving")


class NotStarted(Exception):
    """A peer ended or did not serve in time."""


@contextmanager
def running(
    program: Program, settings: str, folder: Path, environment: Mapping[str, str], *, piped: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run a peer's program until the block ends.

    Args:
        program: Program and arguments.
        settings: Its settings as JSON.
        folder: Folder for its output.
        environment: Further environment variables.
        piped: Whether its input and output are pipes.
    """
    log = folder / "output.txt"
    with log.open("w") as output:
        pipe = subprocess.PIPE if piped else None
        process = subprocess.Popen(
            [str(python(program.environment)), str(_SERVING / program.script), settings],
            env={**_outer(), **_ENVIRONMENT, **environment},
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        stop(process)


def _outer() -> dict[str, str]:
    """Return this process's environment without what would lead Python to another environment's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def wait_until_healthy(process: subprocess.Popen[str], location: str, path: str, folder: Path) -> None:
    """Wait until a server answers.

    Args:
        process: Its main process.
        location: `host:port` that it serves.
        path: Path that answers as soon as it serves.
        folder: Folder of its output.

    Raises:
        NotStarted: It ended, or did not serve in time; with its last output.
    """
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{location}{path}", timeout=2) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)
    raise NotStarted(last_lines(folder) or f"it did not serve within {_START_S:g} s")


def last_lines(folder: Path) -> str:
    """Return the end of a program's output."""
    lines = (folder / "output.txt").read_text(errors="replace").split("\n")
    return " ".join(line.strip() for line in lines if line.strip())[-_SHOWN:]


def stop(process: subprocess.Popen[str]) -> None:
    """End a process and all processes that it started."""
    every = _tree(process.pid)
    _signal(every, signal.SIGCONT)  # a stopped process does not end
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for each in every:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(every, _STOP_S)


@contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """Stop processes and those they started until the block ends: idle servers may poll.

    Args:
        pids: Ids of the processes.
    """
    every = [each for pid in pids for each in _tree(pid)]
    _signal(every, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(every, signal.SIGCONT)


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.Error):
            each.send_signal(number)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process and those it started have used so far."""
    total = 0.0
    for each in _tree(pid):
        with suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def read_counts(folder: Path) -> tuple[float, float] | None:
    """Return the numbers of rows and of batches that a server's processes counted; None if there are none."""
    found = [np.frombuffer(file.read_bytes(), np.int64) for file in folder.iterdir() if file.name.isdigit()]
    if not found:
        return None
    rows, every = np.sum(found, axis=0)
    return float(rows), float(every)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
