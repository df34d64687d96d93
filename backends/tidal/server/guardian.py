"""A process beside `tidal serve` that ends the server when `tidal serve` itself was killed.

It reads one JSON line with what to clean, then waits on the same pipe: a second line says that everything is clean,
an end without it says that `tidal serve` is gone.
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

from tidal.server.cleanup import clean_up, processes_of


class Guardian:
    """The parent's side."""

    def __init__(self, prefix: str, grace_s: float, folder: Path) -> None:
        # A session of its own: what ends `tidal serve` by its process group must not end this.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidal.server.guardian"], stdin=subprocess.PIPE, start_new_session=True, text=True
        )
        self._tell({"prefix": prefix, "grace_s": grace_s, "folder": str(folder)})

    def dismiss(self) -> None:
        """Everything is clean: let the guardian go."""
        self._tell({"clean": True})
        if self._process.stdin is not None:
            with suppress(OSError):  # it flushes what a guardian that died did not read
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass


def main() -> None:
    """Wait for the end of the pipe and clean up when nobody else did."""
    first = sys.stdin.readline()
    if not first:  # the parent was killed before it said, and so before it started a server
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
    psutil.wait_procs(server_processes, timeout=max(0.0, deadline - time.monotonic()))
    clean_up(prefix)
    shutil.rmtree(task["folder"], ignore_errors=True)


def _is_server(process: psutil.Process) -> bool:
    try:
        return Path(process.cmdline()[0]).name == "tritonserver"
    except (psutil.Error, IndexError):
        return False


if __name__ == "__main__":
    main()
