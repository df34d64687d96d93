"""A real Ray of one node, for tests of actors and tasks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidal.cluster import ray_node
from tidal.cluster.connection import LOOPBACK, connected, environment
from tidal.cluster.ray_node import RayProcess
from tidal.server.endpoints import choose_port


@contextmanager
def ray_of_one_node(folder: Path) -> Iterator[tuple[Any, RayProcess, str]]:
    """Run Ray's head on the loopback interface with a secret until the block ends.

    Yields:
        The module `ray`, connected; Ray's processes; Ray's id of the node.
    """
    with pytest.MonkeyPatch.context() as patch:
        (folder / "run").mkdir(mode=0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
        for name in environment(Path("token")):
            patch.setenv(name, "")  # `connected` sets them
        token, port = ray_node.new_token(), choose_port(LOOPBACK)
        started = ray_node.start_head(LOOPBACK, port, token)
        ended = started.started
        try:
            ray_node.wait_for_head(started, f"{LOOPBACK}:{port}")
            with connected(f"{LOOPBACK}:{port}", LOOPBACK, token) as module:
                yield module, started, ray_node.wait_for_node(module, started)
        finally:
            ended.end()
            started.process.wait()
            shutil.rmtree(started.folder)
