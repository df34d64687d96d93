"""Processes of a running server: where they are, and how one is stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from testing.waiting import until
from tidal.server.child import RunningServer


def tritonserver_of(server: RunningServer) -> psutil.Process:
    """Return the present tritonserver of a `tidal serve`, which may have restarted it since it started."""
    children = psutil.Process(server.state.pid).children(recursive=True)
    return next(child for child in children if child.name() == "tritonserver")


def stop(pid: int) -> None:
    """Stop a process by SIGSTOP, and wait until all of its threads have stopped: on a busy machine some still run.

    Args:
        pid: Id of the process.

    Raises:
        RuntimeError: They have not in time.
    """

    def stopped() -> bool:
        states = [each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")]
        return set(states) == {"T"}

    os.kill(pid, signal.SIGSTOP)
    if not until(stopped):
        raise RuntimeError(f"process {pid} has not stopped")
