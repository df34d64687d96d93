"""The status of `tidal serve` for probes: whether it is ready, whether it is alive, and why not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from tidal.server.readiness import ModelReadiness, as_json

# A tritonserver that has not answered for this long is not ready. On a busy machine one answer may take seconds.
SILENT_S = 10.0
# After this long `tidal serve` is no longer live, and its supervisor should restart it.
HUNG_S = 60.0


class Phase(StrEnum):
    """Phase of a run of `tidal serve`."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    ENDING = "ending"


class ServeStatus:
    """Status of a run, written by its threads and read by probes; no method blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._reason: str | None = "tritonserver is starting"
        self._models: Mapping[str, ModelReadiness] = {}
        self._answered_s = clock()
        self._server_restarts = 0
        self._model_restarts: Mapping[str, int] = {}
        self._restarting: Callable[[], Iterable[str]] = tuple

    def restarting_models(self, counts: Mapping[str, int], restarting: Callable[[], Iterable[str]]) -> None:
        """Report restarts of models at once, without waiting for the next observation.

        Args:
            counts: Number of restarts by model, which the supervisor increments as each begins.
            restarting: Returns the models that are being restarted now; any thread may call it.
        """
        with self._lock:
            self._model_restarts, self._restarting = counts, restarting

    def serving(self, models: Mapping[str, ModelReadiness]) -> None:
        """Record that the server serves; tritonserver has just answered with the state of its models."""
        with self._lock:
            self._phase, self._reason = Phase.SERVING, None
            self._models, self._answered_s = models, self._clock()

    def restarting(self, reason: str) -> None:
        """Record that tritonserver is being restarted: no model answers."""
        with self._lock:
            self._phase, self._reason = Phase.RESTARTING, reason
            self._models = {name: ModelReadiness(False, each.wanted, (), reason) for name, each in self._models.items()}

    def ending(self) -> None:
        """Record that the server is stopping: it must get no new requests."""
        with self._lock:
            self._phase, self._reason = Phase.ENDING, "tidal serve is ending"

    def restarted(self, times: int) -> None:
        """Record the number of restarts of tritonserver."""
        with self._lock:
            self._server_restarts = times

    def observed(self, models: Mapping[str, ModelReadiness]) -> None:
        """Record an answer of tritonserver."""
        with self._lock:
            if self._phase is Phase.SERVING:
                self._models, self._answered_s = models, self._clock()

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether every wanted model answers, and the document of `GET /ready`."""
        with self._lock:
            not_ready = {name: each for name, each in self._models.items() if each.wanted and not each.ready}
            silent_s = self._silent_s()
            reason = self._reason
            if self._phase is Phase.SERVING and silent_s >= SILENT_S:
                reason = f"tritonserver has not answered for {silent_s:.0f} s"
            elif self._phase is Phase.SERVING and not_ready:
                reason = "; ".join(f"model '{name}': {each.reason}" for name, each in not_ready.items())
            ready = self._phase is Phase.SERVING and reason is None
            return ready, {
                "ready": ready,
                "state": str(self._phase),
                "reason": reason,
                "not_ready": {name: each.reason for name, each in not_ready.items()},
                "models": as_json(self._models),
                "server_restarts": self._server_restarts,
                "restarts": dict(self._model_restarts),
                "restarting": sorted(self._restarting()),
            }

    def serving_versions(self) -> dict[str, int]:
        """Newest version that serves, by model."""
        with self._lock:
            return {name: max(each.versions) for name, each in self._models.items() if each.ready and each.versions}

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether this run makes progress, and the document of `GET /live`."""
        with self._lock:
            silent_s = self._silent_s()
            hung = self._phase is Phase.SERVING and silent_s >= HUNG_S
            reason = f"tritonserver has not answered for {silent_s:.0f} s" if hung else None
            return not hung, {"live": not hung, "state": str(self._phase), "reason": reason}

    def _silent_s(self) -> float:
        return self._clock() - self._answered_s
