"""Processes of a running `tidal serve`."""

from __future__ import annotations

import psutil

from tidal.server.child import RunningServer


def tritonserver_of(server: RunningServer) -> psutil.Process:
    """Return the present tritonserver of a `tidal serve`, which may have restarted it since it started."""
    children = psutil.Process(server.state.pid).children(recursive=True)
    return next(child for child in children if child.name() == "tritonserver")
