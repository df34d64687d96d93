"""Requests to a partitioned model `m` on a running `tidal serve`, and its instances and versions there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tritonclient.grpc

from testing.serving import Served
from testing.waiting import until
from tidal.server.allocate import LiveFront, partitioned_model, wanted_now
from tidal.server.allocate import allocate as change_instances
from tidal.server.control import ServerControl
from tidal.server.gauges import used_instances

_CLIENTS = 6
# Pause of a client between requests: a load that leaves processor time to the processes that start under it.
_PAUSE_S = 0.02


def control(served: Served) -> ServerControl:
    return ServerControl(served.report["http"], served.state["key"])


def loaded(served: Served, front: str = "m") -> dict[str, tuple[int, int]]:
    """Runtimes that serve: version and requested instances."""
    admin = control(served)
    found = {}
    for row in admin.index():
        if row.state == "READY" and row.name.startswith(f"{front}_len"):
            groups = admin.config(row.name, row.version)["instance_group"]
            found[row.name] = (row.version, sum(group["count"] for group in groups))
    return found


def live(served: Served) -> dict[str, int]:
    return {name: len(served.stubs(name)) for name in loaded(served)}


def used(served: Served) -> dict[int, int]:
    versions = used_instances(served.report["metrics"], "m")
    return versions[max(versions)]


def ask(client: tritonclient.grpc.InferenceServerClient, seconds: float = 0.0, model: str = "m") -> tuple[int, int]:
    """Send a request; return the runtime's length and version."""
    tensor = tritonclient.grpc.InferInput("SECONDS", [1], "FP32")
    tensor.set_data_from_numpy(np.array([seconds], dtype=np.float32))
    length, version = client.infer(model, [tensor], client_timeout=20).as_numpy("RAN")
    return int(length), int(version)


@dataclass
class Load:
    """Responses and failures of closed-loop clients."""

    answers: list[tuple[int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def grown_by(self, more: int) -> bool:
        aim = len(self.answers) + more
        return until(lambda: len(self.answers) >= aim or bool(self.failures))


@contextmanager
def load_on(served: Served) -> Iterator[Load]:
    """Send requests to `m` from several clients until the block ends; each takes 8 ms of a runtime."""
    load, stop = Load(), threading.Event()

    def client() -> None:
        with tritonclient.grpc.InferenceServerClient(served.report["grpc"]) as asking:
            while not stop.wait(_PAUSE_S):
                try:
                    load.answers.append(ask(asking, 0.008))
                except Exception as error:
                    load.failures.append(str(error))

    clients = [threading.Thread(target=client) for _ in range(_CLIENTS)]
    for thread in clients:
        thread.start()
    try:
        yield load
    finally:
        stop.set()
        for thread in clients:
            thread.join()


def allocate(served: Served, **counts: int) -> None:
    """Allocate like the command, without a process: `n16=1` is one instance of 16 tokens."""
    repository = Path(served.report["repository"])
    model = partitioned_model(repository, "m")
    wanted = {**wanted_now(repository, model), **{int(name[1:]): count for name, count in counts.items()}}
    change_instances(
        LiveFront(control(served), served.report["metrics"], repository, model), wanted, lambda _line: None
    )


def versions(served: Served) -> dict[str, list[int]]:
    """Versions of `m` and its runtimes that serve."""
    found: dict[str, list[int]] = {}
    for row in control(served).index():
        if row.state == "READY" and (row.name == "m" or row.name.startswith("m_len")):
            found.setdefault(row.name, []).append(row.version)
    return found
