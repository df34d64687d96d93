"""A slow load of one model delays no request to others."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from testing.serving import MODEL, Served, publish, tidal
from testing.waiting import until

pytestmark = pytest.mark.server

_SLOW = '''
    def initialize(self, args):
        """Wait until the test lets the load finish."""
        folder = Path(tempfile.gettempdir())
        (folder / "loading").touch()
        while not (folder / "go_on").exists():
            time.sleep(0.02)
'''


def test_inference_over_http_goes_on_while_a_model_loads(served: Served, repository: Path) -> None:
    publish(repository, "slow", code=MODEL.read_text() + _SLOW)
    temporary = served.runtime / "tmp"
    tensor = tritonclient.http.InferInput("SECONDS", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    clients = [served.http(timeout=5) for _ in range(16)]
    for client in clients:
        client.infer("echo", [tensor])  # opens its connection before the load does
    loaded: list[int] = []
    command = ("models", "load", "slow")
    load = threading.Thread(target=lambda: loaded.append(tidal(*command, environment=served.environment).returncode))
    load.start()
    try:
        assert until((temporary / "loading").exists)
        for client in clients:
            assert client.infer("echo", [tensor]).as_numpy("SLEPT")[0] == 0
        assert not loaded
    finally:
        (temporary / "go_on").touch()
        load.join()
        for client in clients:
            client.close()
    assert loaded == [0]
    assert served.tidal("models", "unload", "slow").returncode == 0
