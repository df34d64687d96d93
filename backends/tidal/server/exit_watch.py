"""Knowing when a tritonserver that was asked to end has nothing left to do, although it stays.

A version that serves and is loaded again, because its files or its config changed, is replaced in the background.
Where that load fails, Triton (2.51) never removes its record and counts it as a live model: at the end it waits for
that model until its exit timeout and reports a failure. Its metrics show the truth: each loaded model has series there
until it is unloaded, and the metrics port answers until the process ends.
"""

from __future__ import annotations

import http.client
import re
import urllib.request

from tidal.server.stubs import live_stubs

# Without models a server ends within a second or two; one that stays for so long waits for nothing.
IDLE_S = 3.0
_ANSWER_S = 1.0
# Other families keep series of models that are gone.
_MODEL_SERIES = re.compile(r"^nv_inference_request_success\{", re.MULTILINE)


class ExitWatch:
    """Observes a server that was asked to end."""

    def __init__(self, server_pid: int, metrics: str) -> None:
        """Begin.

        Args:
            server_pid: its process.
            metrics: `host:port` of its metrics.
        """
        self._server_pid = server_pid
        self._metrics = metrics
        self._empty_since: float | None = None

    def idle(self, now_s: float) -> bool:
        """Whether the server has had no model and no Python process for `IDLE_S`; call it several times a second.

        A server whose metrics do not answer is never idle.

        Args:
            now_s: monotonic time in seconds.
        """
        if live_stubs(self._server_pid) or self._has_models():
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = now_s
        return now_s - self._empty_since >= IDLE_S

    def _has_models(self) -> bool:
        # A proxy of the environment is for other machines' traffic.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self._metrics}/metrics", timeout=_ANSWER_S) as response:
                text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return True
        return _MODEL_SERIES.search(text) is not None
