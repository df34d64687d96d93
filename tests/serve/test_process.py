"""When a started tritonserver counts as started, with a process that answers nothing in its place."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidal.server.endpoints import Endpoints, choose_port
from tidal.server.launch import Launch
from tidal.server.process import ServerProcess


@pytest.fixture
def launch() -> Any:
    """A launch of `sleep`, whose HTTP endpoint answers at once."""
    return SimpleNamespace(
        command=lambda: ["sleep", "60"],
        environment=dict,
        control=lambda: SimpleNamespace(live=lambda: True),
        access_log=None,
        protection=SimpleNamespace(stack_bytes=None),
        endpoints=Endpoints("127.0.0.1", 1, 2, choose_port("127.0.0.1")),
        shm_prefix="tidal_test_process_",
    )


def test_it_has_started_when_its_metrics_can_be_read_too(launch: Any) -> None:
    process = ServerProcess(cast(Launch, launch), None)
    try:
        started = threading.Event()
        waiting = threading.Thread(target=lambda: process.wait_live(threading.Event()) and started.set())
        waiting.start()
        assert not started.wait(0.5)
        with socket.create_server(("127.0.0.1", launch.endpoints.metrics), reuse_port=True):
            assert started.wait(30)
        waiting.join()
    finally:
        process.kill()
