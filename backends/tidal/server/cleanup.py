"""Removing what a crashed server leaves: Python stubs and shared-memory files, identified by the server's prefix."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tidal.server.installation import STUB_NAME

SHARED_MEMORY = Path("/dev/shm")
# Longest wait for killed processes to end.
_END_S = 5.0
_POLL_S = 0.01


def processes_of(prefix: str) -> list[psutil.Process]:
    """Live processes of this user with the prefix in their arguments: the server and its stubs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == psutil.Process().uids().real and any(prefix in a for a in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def clean_up(prefix: str) -> tuple[int, int]:
    """Kill every process of a server, then remove its shared memory.

    Args:
        prefix: The server's `shm-region-prefix-name`, which no other server uses.

    Returns:
        Number of processes killed and of files removed.
    """
    processes = processes_of(prefix)
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
    wait_ended(processes, _END_S)
    files = [path for path in SHARED_MEMORY.glob(f"{prefix}*") if path.is_file()]
    for path in files:
        path.unlink(missing_ok=True)
    return len(processes), len(files)


def wait_ended(processes: Sequence[psutil.Process], timeout_s: float) -> None:
    """Wait until processes have ended. Zombies have: a container's init may reap orphans late or never.

    Args:
        processes: Processes to wait for.
        timeout_s: Longest wait, in seconds.
    """
    give_up_at = time.monotonic() + timeout_s
    while any(_runs(process) for process in processes) and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def orphans() -> list[psutil.Process]:
    """Python stubs whose server has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            if arguments and Path(arguments[0]).name == STUB_NAME and str(process.ppid()) not in arguments:
                found.append(process)
        except psutil.Error:
            continue
    return found


def leftovers() -> list[Path]:
    """Shared-memory files of Python stubs that no running process uses."""
    regions = [*SHARED_MEMORY.glob("triton_python_backend_shm_region_*"), *SHARED_MEMORY.glob("tidal_*")]
    arguments = set()
    for process in psutil.process_iter():
        try:
            arguments.update(process.cmdline())
        except psutil.Error:
            continue
    return sorted(path for path in regions if path.name not in arguments)
