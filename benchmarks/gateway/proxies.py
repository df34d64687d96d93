"""What is measured: `tidal gateway` with keys and log, and LiteLLM's proxy, each before an engine."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from benchmarks.environments import LITELLM, folder, why_not
from benchmarks.gateway import free_engine
from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tidal_gateway.keys.store import add_key

_KEY = "sk-benchmark"
_READY_S = 180.0


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy.

    Attributes:
        address: ``host:port``.
        headers: Headers of every request, with its key.
        cpu_seconds: Returns the processor time of all its processes so far.
        gateway: The gateway; None for another proxy.
    """

    address: str
    headers: dict[str, str]
    cpu_seconds: Callable[[], float]
    gateway: RunningGateway | None = None


@contextmanager
def gateway(*options: str) -> Iterator[Proxy]:
    """Run the gateway with one worker, keys and an access log.

    Args:
        options: Further options of `tidal gateway`, the servers among them.
    """
    with tempfile.TemporaryDirectory(prefix="tidal-gateway-") as name:
        here = Path(name)
        key, _ = add_key(here / "keys.json", "benchmark")
        with running_gateway(here, "--keys", str(here / "keys.json"), *options) as running:
            if not until(running.ready, _READY_S):
                raise RuntimeError((here / "stderr").read_text())
            yield Proxy(running.address, {"authorization": f"Bearer {key}"}, running.cpu_seconds, running)


def why_no_litellm() -> str | None:
    """Return why LiteLLM is not measured; None if it is installed."""
    return why_not(LITELLM)


@contextmanager
def litellm(engine: str) -> Iterator[Proxy]:
    """Run LiteLLM's proxy with one worker and a key before an OpenAI server.

    Args:
        engine: ``host:port`` of the OpenAI server.
    """
    model = free_engine.EMBEDDER
    parameters = {"model": f"openai/{model}", "api_base": f"http://{engine}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": model, "litellm_params": parameters}],
        "general_settings": {"master_key": _KEY},
        "litellm_settings": {"telemetry": False},
    }
    with tempfile.TemporaryDirectory(prefix="tidal-litellm-") as name:
        here, port = Path(name), _free_port()
        (here / "config.yaml").write_text(yaml.safe_dump(config))
        command = [str(folder(LITELLM) / "bin" / "litellm"), "--config", str(here / "config.yaml")]
        command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        # Without it, it downloads a list of prices when it starts.
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
        with (here / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=here)
        try:
            if not until(lambda: _answers(f"http://127.0.0.1:{port}/health/liveliness"), _READY_S):
                raise RuntimeError((here / "log").read_text()[-2000:])
            yield Proxy(f"127.0.0.1:{port}", {"authorization": f"Bearer {_KEY}"}, lambda: cpu_seconds_of(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cpu_seconds_of(pid: int) -> float:
    """Return the processor time of a process and its children so far."""
    first, total = psutil.Process(pid), 0.0
    for each in (first, *first.children(recursive=True)):
        times = each.cpu_times()
        total += times.user + times.system
    return total


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        time.sleep(0.2)
        return False


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
