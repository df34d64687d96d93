"""`tidal serve` as a subprocess, started as users start it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc
import tritonclient.http
from typer.testing import CliRunner

from testing.waiting import until
from tidal_client.main import build_app

TIDAL = [sys.executable, "-m", "tidal_client.main"]
FREE_PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
MODEL = Path(__file__).with_name("echo_model.py")
CONFIG = """
backend: "python"
input [ { name: "SECONDS" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "SLEPT" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: %d } ]
"""


@dataclass
class Served:
    """A running `tidal serve --json`, and the report that it printed when it was ready."""

    process: subprocess.Popen[str]
    report: dict[str, Any]
    runtime: Path
    environment: dict[str, str]

    @property
    def state(self) -> dict[str, Any]:
        port = self.report["http"].rpartition(":")[2]
        found: dict[str, Any] = json.loads((self.runtime / "tidal" / f"{port}.json").read_text())
        return found

    @property
    def admin(self) -> dict[str, str]:
        return {"tidal-admin-key": self.state["key"]}

    def http(self, timeout: float = 30) -> tritonclient.http.InferenceServerClient:
        return tritonclient.http.InferenceServerClient(
            self.report["http"], network_timeout=timeout, connection_timeout=timeout
        )

    def infer(self, model: str = "echo", seconds: float = 0.0, timeout: float = 30) -> float:
        tensor = tritonclient.http.InferInput("SECONDS", [1], "FP32")
        tensor.set_data_from_numpy(np.array([seconds], dtype=np.float32))
        return float(self.http(timeout).infer(model, [tensor]).as_numpy("SLEPT")[0])

    def infer_grpc(self, model: str = "echo", seconds: float = 0.0, timeout: float = 30) -> float:
        tensor = tritonclient.grpc.InferInput("SECONDS", [1], "FP32")
        tensor.set_data_from_numpy(np.array([seconds], dtype=np.float32))
        with tritonclient.grpc.InferenceServerClient(self.report["grpc"]) as client:
            return float(client.infer(model, [tensor], client_timeout=timeout).as_numpy("SLEPT")[0])

    def request_in_background(self, seconds: float, answers: list[object], timeout: float = 60) -> threading.Thread:
        """Send a request to `echo` over gRPC; return when it has reached the model."""

        def send() -> None:
            try:
                answers.append(self.infer_grpc(seconds=seconds, timeout=timeout))
            except Exception as error:
                answers.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        assert until((self.runtime / "tmp" / "busy").exists)
        return thread

    def stubs(self, model: str) -> list[psutil.Process]:
        """Live stubs that serve a model."""
        found = []
        for child in psutil.Process(self.state["server_pid"]).children():
            try:
                arguments = child.cmdline()
            except psutil.Error:
                continue
            if len(arguments) > 8 and arguments[8].startswith(f"{model}_"):
                found.append(child)
        return found

    def tidal(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command for this server in this process; not while another thread runs one."""
        return tidal_in_process(*arguments, environment=self.environment)

    def left_behind(self) -> list[str]:
        """Processes, shared memory and files of this run that still exist."""
        return left_behind(self.process.pid, self.runtime)


def left_behind(pid: int, runtime: Path) -> list[str]:
    mark = f"tidal_{pid}_"
    found = [str(path) for path in Path("/dev/shm").glob(f"{mark}*")]
    found += [str(path) for path in (runtime / "tidal").glob("*.json")]
    found += [str(path) for path in (runtime / "tmp").glob("tidal-serve-*")]
    for process in psutil.process_iter():
        try:
            if any(mark in argument for argument in process.cmdline()):
                found.append(f"process {process.pid} {process.status()} {' '.join(process.cmdline()[:3])}")
        except psutil.Error:
            continue
    return found


def tidal(
    *arguments: str, environment: dict[str, str] | None = None, command: Sequence[str] = TIDAL
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def tidal_in_process(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the `tidal` command in this process, which saves the second that its imports take.

    Meanwhile it redirects the standard output and changes the environment of the whole process.
    """
    absent = {name: None for name in os.environ if name not in environment}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        result = CliRunner(env={**environment, **absent}).invoke(build_app(), arguments, prog_name="tidal")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(["tidal", *arguments], result.exit_code, result.stdout, result.stderr)


def environment_in(folder: Path) -> dict[str, str]:
    """An environment whose state, logs and temporary files are in a folder."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "TIDAL_ADMIN_KEY"}
    return {
        **kept,
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_STATE_HOME": str(folder / "log"),
        "TMPDIR": str(folder / "tmp"),
    }


def publish(repository: Path, model: str, version: int = 1, instances: int = 1, code: str | None = None) -> Path:
    """Write a version of the trivial model, or of another `code`."""
    staging = Path(tempfile.mkdtemp(dir=repository.parent))
    (staging / "model.py").write_text(code if code is not None else MODEL.read_text())
    folder = repository / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG % instances)
    shutil.move(staging, folder / str(version))
    return folder / str(version)


@contextmanager
def serving(repository: Path, runtime: Path, *options: str, command: Sequence[str] = TIDAL) -> Iterator[Served]:
    """Run `tidal serve`, or that of another `command`, until the end of the block, even if that raises."""
    environment = environment_in(runtime)
    with (runtime / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [*command, "serve", str(repository), "--json", *FREE_PORTS, *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (runtime / "stderr").read_text()
        yield Served(process, json.loads(line), runtime, environment)
    finally:
        if process.poll() is None:
            # The second signal ends it at once: tests that are about its end wait for it within the block.
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()  # its guardian cleans up
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        _sweep(f"tidal_{process.pid}_")


def _sweep(mark: str) -> None:
    """Remove what a failed test left, so that it does not disturb the next one."""
    for process in psutil.process_iter():
        try:
            if any(mark in argument for argument in process.cmdline()):
                process.kill()
        except psutil.Error:
            continue
    for path in Path("/dev/shm").glob(f"{mark}*"):
        path.unlink(missing_ok=True)
