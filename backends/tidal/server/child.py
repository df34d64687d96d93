"""A `tidal serve` child process for the length of a block: for pipelines, demos and measurements."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidal.server.control import ServerControl
from tidal.server.state import ServerState

_START_S = 180


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running `tidal serve`.

    Attributes:
        state: Its state file: addresses, admin key and process ids.
        control: Admin API of its tritonserver.
    """

    state: ServerState
    control: ServerControl

    @property
    def grpc(self) -> str:
        """URL for `tidal_client` over gRPC."""
        return f"grpc://{self.state.grpc}"

    @property
    def http(self) -> str:
        """URL for `tidal_client` over HTTP."""
        return f"http://{self.state.http}"


@contextmanager
def tidal_serve(repository: Path, *arguments: str, python: str = sys.executable) -> Iterator[RunningServer]:
    """Run `tidal serve` until the block ends. It does not restart tritonserver, so that a crash is not hidden.

    Args:
        repository: Folder of the model repository.
        arguments: Further arguments of `tidal serve`.
        python: Interpreter of the environment whose `tidal` serves.

    Raises:
        RuntimeError: It ended before it served; the message has its output.
    """
    with tempfile.TemporaryDirectory(prefix="tidal-child-") as runtime:
        env = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        ports = [part for name in ("http", "grpc", "metrics") for part in (f"--{name}-port", "0")]
        options = (*ports, "--server-restarts", "0", *arguments)
        command = [python, "-m", "tidal_client.main", "serve", str(repository), *options]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            state = _wait_for_state(process, Path(runtime) / "tidal")
            yield RunningServer(state, state.control())
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_for_state(process: subprocess.Popen[str], folder: Path) -> ServerState:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        for path in folder.glob("*.json") if folder.is_dir() else ():
            return ServerState.model_validate_json(path.read_bytes())
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    output = process.communicate()[0]
    raise RuntimeError(f"`tidal serve` did not start:\n{output}")
