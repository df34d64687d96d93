"""Detecting that a tritonserver which is shutting down is idle but does not end.

Triton replaces a version that is loaded again, because its files or its config changed, in the background. Where that
load fails, Triton (2.51) never removes its record and counts it as a live model: at shutdown it waits for that model
until its exit timeout and reports a failure. Its metrics are correct: each loaded model has series there until it is
unloaded, and the metrics port answers until the process ends.
"""

from __future__ import annotations

import http.client
import re

from tidal.server.local_http import open_url
from tidal.server.stubs import live_stubs

# Without models a server ends within a second or two; one that runs for longer waits for nothing.
IDLE_S = 3.0
_ANSWER_S = 1.0
# Other metrics keep series of unloaded models.
_MODEL_SERIES = re.compile(r"^nv_inference_request_success\{", re.MULTILINE)


class ExitWatch:
    """Observes a server that is shutting down."""

    def __init__(self, server_pid: int, metrics: str) -> None:
        """Create a watch.

        Args:
            server_pid: Process id of the server.
            metrics: `host:port` of its metrics.
        """
        self._server_pid = server_pid
        self._metrics = metrics
        self._empty_since: float | None = None

    def idle(self, now_s: float) -> bool:
        """Whether the server has had no model and no Python process for `IDLE_S`; call it several times per second.

        A server whose metrics do not answer is never idle.

        Args:
            now_s: Monotonic time in seconds.
        """
        if live_stubs(self._server_pid) or self._has_models():
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = now_s
        return now_s - self._empty_since >= IDLE_S

    def _has_models(self) -> bool:
        try:
            with open_url(f"http://{self._metrics}/metrics", _ANSWER_S) as response:
                text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return True
        return _MODEL_SERIES.search(text) is not None
