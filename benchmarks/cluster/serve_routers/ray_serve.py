"""Ray Serve on three nodes of this machine: how it is started, and the settings that are searched."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster.emulated import emulated_device
from benchmarks.cluster.emulated.devices import profile_json
from benchmarks.cluster.serve_routers.loads import Load
from benchmarks.encoders.load import LoadResult
from benchmarks.encoders.processes import NotStarted, free_port, last_lines, running, wait_until_healthy
from benchmarks.encoders.systems import Program
from benchmarks.environments import SERVERS
from tidal.repository.entries import write_atomically

_SERVING = Path(__file__).with_name("serving")
_PROGRAM = Program(str(_SERVING / "ray_server.py"), SERVERS, "/-/healthz")
_DEVICE = _SERVING / "device_server.py"
# On one machine, nodes cannot have the same ports: those of their HTTP and gRPC proxies, and of HAProxy's statistics.
_PORTS = tuple(
    f"RAY_SERVE_{name}_PORT" for name in ("WORKER_PROXY_HTTP", "WORKER_PROXY_GRPC", "HAPROXY_STATS", "HAPROXY_METRICS")
)
# Labels that a device answers with.
_LABELS = 2
# Its long polls reach proxies and replicas some time after a change.
_APPLIED_S = 1.0


class Ingress(StrEnum):
    """Entrance of queries to Ray Serve."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    HANDLE = "handle in the sender"


@dataclass(frozen=True, slots=True)
class Form:
    """Settings that can change while it runs.

    Attributes:
        ingress: Entrance of the queries.
        max_ongoing: Queries that a replica is given at a time (`max_ongoing_requests`).
        threaded: Whether a replica's device waits on a thread of its own, or on the event loop's.
    """

    ingress: Ingress = Ingress.HTTP
    max_ongoing: int = 5
    threaded: bool = False

    @property
    def label(self) -> str:
        """Settings in words, for tables."""
        return f"{self.ingress}, {self.max_ongoing} ongoing{', device on a thread' if self.threaded else ''}"


@dataclass(frozen=True, slots=True)
class Mode:
    """Settings of its processes, and those to try with them.

    Attributes:
        name: Name of the mode.
        variables: Environment variables.
        forms: Settings that can change while it runs; the first is used with --quick.
    """

    name: str
    variables: Mapping[str, str]
    forms: Sequence[Form]


_OPTIMIZED = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
#: Its own router in a proxy on every node.
ROUTED = (
    Mode("proxies, as installed", {}, (Form(Ingress.HANDLE), Form(Ingress.GRPC), Form())),
    Mode(
        "proxies, optimized for throughput",
        {**_OPTIMIZED, "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"},
        (Form(Ingress.GRPC), Form(), Form(max_ongoing=1), Form(max_ongoing=100), Form(max_ongoing=100, threaded=True)),
    ),
)
#: HAProxy on every node, which sends to replicas itself: the one with the fewest connections, without Ray's router.
BALANCED = Mode(
    "HAProxy",
    {**_OPTIMIZED, "RAY_SERVE_ENABLE_HA_PROXY": "1"},
    (Form(), Form(max_ongoing=100), Form(max_ongoing=100, threaded=True)),
)


class RayNodes:
    """Running nodes of Ray Serve.

    Args:
        process: Its main process, which obeys commands.
        folder: Folder of its files.
        http: `host:port` of the HTTP ingress of each node.
        grpc: `host:port` of the gRPC ingress of each node.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path, http: list[str], grpc: list[str]) -> None:
        self._process, self._folder = process, folder
        self.http, self.grpc = http, grpc
        self._form = Form()

    @property
    def pid(self) -> int:
        """Id of the process that started all others."""
        return self._process.pid

    def use(self, form: Form) -> None:
        """Change the settings of the replicas; those that run stay."""
        if (form.max_ongoing, form.threaded) != (self._form.max_ongoing, self._form.threaded):
            self._command(do="deploy", max_ongoing=form.max_ongoing, threaded=form.threaded)
            time.sleep(_APPLIED_S)
        self._form = form

    def set_seconds(self, seconds: Sequence[float]) -> None:
        """Set how long its devices wait, by length in tokens from 0."""
        write_atomically(profile(self._folder), profile_json(seconds, _LABELS))

    def drive(self, load: Load) -> LoadResult:
        """Send a load by a handle of its main process."""
        closed = {"in_flight": load.in_flight, "seconds": load.seconds}
        open_ = {} if load.times is None else {"times": load.times.tolist()}
        found = self._command(do="drive", lengths=list(load.lengths), warm_s=load.warm_s, **(open_ or closed))
        latencies = np.array(found["latencies_ms"])
        per_second = len(latencies) / found["seconds"]
        return LoadResult(per_second, latencies, found["failed"], found["client_s"], found["seconds"], found["error"])

    def _command(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise NotStarted(last_lines(self._folder))
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def ray_nodes(mode: Mode, devices: Sequence[int], seconds: Sequence[float]) -> Iterator[RayNodes]:
    """Run Ray Serve until the block ends.

    Args:
        mode: Settings of its processes.
        devices: Number of replicas of each node.
        seconds: Seconds that a device waits, by length in tokens from 0.

    Raises:
        NotStarted: It does not run; with the reason.
    """
    with tempfile.TemporaryDirectory(prefix="ray-") as here:
        folder, gcs, ports = Path(here), free_port(), [[free_port() for _ in _PORTS] for _ in devices]
        http, grpc, *_ = zip(*ports, strict=True)
        (folder / "code").mkdir()
        for file in (_DEVICE, Path(emulated_device.__file__)):
            shutil.copy(file, folder / "code")
        write_atomically(profile(folder), profile_json(seconds, _LABELS))
        nodes = [
            {"devices": number, "variables": dict(zip(_PORTS, map(str, each), strict=True))}
            for number, each in zip(devices, ports, strict=True)
        ]
        settings: dict[str, Any] = {"nodes": nodes, "folder": str(folder / "ray"), "gcs_port": gcs}
        settings |= {"http_port": http[0], "grpc_port": grpc[0], "max_ongoing": Form().max_ongoing, "threaded": False}
        environment = {**mode.variables, **_files(folder), "PYTHONPATH": str(folder / "code")}
        environment["DEVICE_PROFILE"] = str(profile(folder))
        with running(_PROGRAM, json.dumps(settings), folder, environment, piped=True) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise NotStarted(last_lines(folder))
            locations = [[f"127.0.0.1:{port}" for port in each] for each in (http, grpc)]
            for location in locations[0]:
                wait_until_healthy(process, location, _PROGRAM.health, folder)
            yield RayNodes(process, folder, *locations)


def profile(folder: Path) -> Path:
    """Return the file with the seconds that devices wait."""
    return folder / "latencies.json"


def chosen(mode: Mode, quick: bool) -> Mode:
    """Return a mode with the settings to try.

    Args:
        mode: The mode.
        quick: Whether to try one only.
    """
    return replace(mode, forms=mode.forms[:1]) if quick else mode


def _files(folder: Path) -> dict[str, str]:
    """Return the variables with the paths of HAProxy's files, which are else shared by all users of the machine.

    Ray adds 57 characters to the path of its socket, which can have 97.
    """
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_BASE": "",
        "SERVER_STATE_FILE": "server-state",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    return {f"RAY_SERVE_HAPROXY_{name}": str(folder / "h" / file) for name, file in files.items()}
