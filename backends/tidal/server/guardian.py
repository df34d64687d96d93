"""A process next to `tidal serve` that stops the server and cleans up when `tidal serve` itself was killed.

It reads one JSON line with what to clean up, then waits on the same pipe. A second line means that everything is clean;
the end of the pipe without it means that `tidal serve` has ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tidal.server.cleanup import clean_up, processes_of, wait_ended


class Guardian:
    """The guardian as its parent sees it."""

    def __init__(self, prefix: str, grace_s: float, folder: Path) -> None:
        # A session of its own: a signal to the process group of `tidal serve` must not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidal.server.guardian"], stdin=subprocess.PIPE, start_new_session=True, text=True
        )
        self._send({"prefix": prefix, "grace_s": grace_s, "folder": str(folder)})

    def dismiss(self) -> None:
        """End the guardian: everything is clean."""
        self._send({"clean": True})
        if self._process.stdin is not None:
            with suppress(OSError):  # it flushes what a dead guardian did not read
                self._process.stdin.close()
        self._process.wait()

    def _send(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass


def main() -> None:
    """Wait for the end of the pipe, and clean up unless the parent has."""
    first = sys.stdin.readline()
    if not first:  # the parent was killed before it started a server
        return
    task = json.loads(first)
    if sys.stdin.readline():
        return
    prefix, deadline = task["prefix"], time.monotonic() + task["grace_s"]
    server_processes = [p for p in processes_of(prefix) if _is_server(p)]
    for process in server_processes:
        try:
            process.terminate()
        except psutil.Error:
            continue
    wait_ended(server_processes, max(0.0, deadline - time.monotonic()))
    clean_up(prefix)
    shutil.rmtree(task["folder"], ignore_errors=True)


def _is_server(process: psutil.Process) -> bool:
    try:
        return Path(process.cmdline()[0]).name == "tritonserver"
    except (psutil.Error, IndexError):
        return False


if __name__ == "__main__":
    main()
